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
"""The failure domain of brokers without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationPolicy:
    """Namespaces that only certain brokers may serve, and brokers that may serve no others.

    All are regular expressions that must match completely: for namespaces the name, for brokers
    the host without its port. Secondary brokers may serve as well while fewer than ``min_limit``
    primary brokers are registered with a usage of at most ``usage_threshold`` (a fraction).
    """

    namespaces: tuple[str, ...]
    primary: tuple[str, ...]
    secondary: tuple[str, ...] = ()
    min_limit: int = 1
    usage_threshold: float = 1.0

    def governs(self, namespace: Namespace) -> bool:
        return any(re.fullmatch(pattern, namespace) for pattern in self.namespaces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """Isolation policies by name, anti-affinity groups, failure domains and fixed bundles.

    Namespaces of the same anti-affinity group (case-insensitive) are kept on different brokers,
    and first in different domains if domains are in use. ``staying`` bundles are never shed.
    """

    isolation: Mapping[str, IsolationPolicy] = field(default_factory=lambda: MappingProxyType({}))
    anti_affinity: Mapping[Namespace, str] = field(default_factory=lambda: MappingProxyType({}))
    domains: Mapping[BrokerId, str] = field(default_factory=lambda: MappingProxyType({}))
    staying: frozenset[BundleId] = frozenset()

    def governing(self, namespace: Namespace) -> IsolationPolicy | None:
        """Return the policy for ``namespace``; if several match, the first by name."""
        return next(
            (policy for _, policy in sorted(self.isolation.items()) if policy.governs(namespace)),
            None,
        )

    def group_of(self, namespace: Namespace) -> frozenset[Namespace]:
        """Return the namespaces in the anti-affinity group of ``namespace``, if it has one."""
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
    policies: Policies,
    policy: IsolationPolicy | None,
    brokers: tuple[BrokerId, ...],
    registered: tuple[BrokerId, ...] | None = None,
) -> Mask:
    """Return which of ``brokers`` may take bundles regardless of load.

    With a policy these are its primary brokers, and its secondary ones while fewer than
    ``min_limit`` primary brokers are ``registered`` (by default ``brokers``); without one, the
    brokers that are primary in no policy.
    """
    if policy is not None:
        primary = hosts_matching(policy.primary, brokers)
        up = primary if registered is None else hosts_matching(policy.primary, registered)
        if np.count_nonzero(up) >= policy.min_limit:
            return primary
        return primary | hosts_matching(policy.secondary, brokers)
    patterns = (pattern for one in policies.isolation.values() for pattern in one.primary)
    return ~hosts_matching(tuple(patterns), brokers)
