"""Which brokers may serve which namespaces, as operators have set it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import numpy as np

from loadmanager.core.columns import Mask
from loadmanager.core.ids import BrokerId, BundleId, Namespace

DEFAULT_DOMAIN: Final = ""
"""The failure domain of brokers that are in none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationPolicy:
    """Namespaces that only certain brokers may serve, and no others there.

    All are regular expressions that must match as a whole: namespaces the name, brokers
    the host without its port. Secondary brokers help while fewer than ``min_limit``
    primary ones are registered and used to ``usage_threshold`` (a fraction) or less.
    """

    namespaces: tuple[str, ...]
    primary: tuple[str, ...]
    secondary: tuple[str, ...] = ()
    min_limit: int = 1
    usage_threshold: float = 1.0

    def governs(self, namespace: Namespace) -> bool:
        """Return whether the policy is about ``namespace``."""
        return any(re.fullmatch(pattern, namespace) for pattern in self.namespaces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """Isolation by name of the policy, anti-affinity groups, failure domains, and what stays.

    Namespaces of one anti-affinity group, compared without regard to case, are kept on
    different brokers, and on different domains first if domains are in use. ``staying``
    bundles are shed by no strategy.
    """

    isolation: Mapping[str, IsolationPolicy] = field(default_factory=lambda: MappingProxyType({}))
    anti_affinity: Mapping[Namespace, str] = field(default_factory=lambda: MappingProxyType({}))
    domains: Mapping[BrokerId, str] = field(default_factory=lambda: MappingProxyType({}))
    staying: frozenset[BundleId] = frozenset()

    def governing(self, namespace: Namespace) -> IsolationPolicy | None:
        """Return the policy about ``namespace``, of several the first by name."""
        return next(
            (policy for _, policy in sorted(self.isolation.items()) if policy.governs(namespace)),
            None,
        )

    def group_of(self, namespace: Namespace) -> frozenset[Namespace]:
        """Return all namespaces of the anti-affinity group of ``namespace``; none without one."""
        group = self.anti_affinity.get(namespace)
        if group is None:
            return frozenset()
        folded = group.casefold()
        return frozenset(
            name for name, other in self.anti_affinity.items() if other.casefold() == folded
        )


NO_POLICIES: Final = Policies()


@lru_cache(maxsize=512)
def hosts_matching(patterns: tuple[str, ...], brokers: tuple[BrokerId, ...]) -> Mask:
    """Return which brokers' hosts, without the port, one of the patterns matches as a whole."""
    compiled = [re.compile(pattern) for pattern in patterns]
    found = np.array(
        [
            any(pattern.fullmatch(broker.rpartition(":")[0]) for pattern in compiled)
            for broker in brokers
        ],
        dtype=np.bool_,
    )
    found.flags.writeable = False
    return found


def open_to(
    policies: Policies, policy: IsolationPolicy | None, brokers: tuple[BrokerId, ...]
) -> Mask:
    """Return which brokers may take bundles without regard to load.

    With a policy these are its primary brokers; without one, all that are primary in none.
    """
    if policy is not None:
        return hosts_matching(policy.primary, brokers)
    patterns = (pattern for one in policies.isolation.values() for pattern in one.primary)
    return ~hosts_matching(tuple(patterns), brokers)
