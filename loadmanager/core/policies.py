from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import numpy as np

from loadmanager.core.columns import Mask
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.patterns import Patterns, loosened, matches_any, together, why_refused

MOST_NAMED: Final = 10
MOST_PATTERNS: Final = 1_000
MOST_CHARACTERS: Final = 100_000
_TOO_MUCH: Final = (
    f"with it policies have over {MOST_PATTERNS:,} patterns, or {MOST_CHARACTERS:,} characters"
)

DEFAULT_DOMAIN: Final = ""
"""The failure domain of brokers without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationPolicy:
    """Namespaces that only certain brokers may serve, and brokers that may serve no others.

    All are regular expressions of Java that must match completely: for namespaces the name, for
    brokers the host without its port. Nothing of a policy with one that is ``refused`` applies, and
    bundles of namespaces that it may govern stay where they are. Secondary brokers may serve as
    well while fewer than ``min_limit``
    primary brokers are registered with a usage of at most ``usage_threshold`` (a fraction).
    """

    namespaces: tuple[str, ...]
    primary: tuple[str, ...]
    secondary: tuple[str, ...] = ()
    min_limit: int = 1
    usage_threshold: float = 1.0
    malformed: str = ""

    @property
    def patterns(self) -> tuple[str, ...]:
        return (*self.namespaces, *self.primary, *self.secondary)

    @property
    def refused(self) -> str:
        """Why it cannot be applied, "" if it can."""
        return self.malformed or why_refused(self.patterns)


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
    refused: Mapping[str, str] = field(init=False, repr=False, compare=False)
    groups: Mapping[str, frozenset[Namespace]] = field(init=False, repr=False, compare=False)
    _governing: Mapping[str, IsolationPolicy] = field(init=False, repr=False, compare=False)
    _held: Mapping[str, str] = field(init=False, repr=False, compare=False)
    _patterns: Patterns = field(init=False, repr=False, compare=False)
    _loosened: Patterns = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        governing, held = dict[str, IsolationPolicy](), dict[str, str]()
        refused, patterns, characters = dict[str, str](), 0, 0
        for name, one in sorted(self.isolation.items()):
            count, length = patterns + len(one.patterns), characters + sum(map(len, one.patterns))
            much = count > MOST_PATTERNS or length > MOST_CHARACTERS
            if why := (much and _TOO_MUCH) or one.refused:
                refused[name] = f"isolation policy {name} is refused: {why}"
                for pattern in one.namespaces:
                    held.setdefault(loosened(pattern), refused[name])
            else:
                patterns, characters = count, length
                for pattern in one.namespaces:
                    governing.setdefault(pattern, one)
        groups: dict[str, set[Namespace]] = {}
        for name, group in self.anti_affinity.items():
            groups.setdefault(group.casefold(), set()).add(name)
        frozen = {group: frozenset(names) for group, names in groups.items()}
        made = {"refused": refused, "groups": frozen, "_governing": governing, "_held": held}
        found = {"_patterns": together(tuple(governing)), "_loosened": together(tuple(held))}
        for name, value in {**made, **found}.items():
            object.__setattr__(self, name, value)

    @property
    def refusals(self) -> str:
        """Which policies are refused and why; of many the first, and their number."""
        every = list(self.refused.values())
        more = f"; {len(every) - MOST_NAMED} more are refused" if len(every) > MOST_NAMED else ""
        return "; ".join(every[:MOST_NAMED]) + more

    def governing(self, namespace: Namespace) -> IsolationPolicy | None:
        """Return the policy for ``namespace``; if several match, the first by name."""
        pattern = self._patterns.first(namespace)
        return None if pattern is None else self._governing[pattern]

    def refusal(self, namespace: Namespace) -> str:
        """Return why the bundles of a namespace stay: a refused policy may be for it, else ""."""
        pattern = self._loosened.first(namespace)
        return "" if pattern is None else self._held[pattern]

    def group_of(self, namespace: Namespace) -> frozenset[Namespace]:
        """Return the namespaces in the anti-affinity group of ``namespace``, if it has one."""
        group = self.anti_affinity.get(namespace)
        return frozenset() if group is None else self.groups[group.casefold()]


NO_POLICIES: Final = Policies()


@lru_cache(maxsize=512)
def hosts_matching(patterns: tuple[str, ...], brokers: tuple[BrokerId, ...]) -> Mask:
    hosts = (broker.rpartition(":")[0] for broker in brokers)
    found = np.array([matches_any(patterns, host) for host in hosts], dtype=np.bool_)
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
    applied = (one for name, one in policies.isolation.items() if name not in policies.refused)
    patterns = (pattern for one in applied for pattern in one.primary)
    return ~hosts_matching(tuple(patterns), brokers)
