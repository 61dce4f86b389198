r"""Isolation policies and anti-affinity groups; patterns of Java, matched in linear time by RE2.

Texts are names of namespaces and hosts, in ASCII without white space: where RE2 and Java differ for
other characters (``\s``, ``.``, ``\b``) nothing is translated.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import re2

from loadmanager.core.columns import Indices, Mask
from loadmanager.core.ids import BrokerId, BundleId, Namespace

LONGEST_PATTERN: Final = 1_000
_LONGEST_BEGIN: Final = 200
_MOST_KNOWN: Final = 524_288
_TOKEN: Final = re.compile(
    r"\\Q((?:[^\\]|\\(?!E))*+)(?:\\E)?|\\([pP])\{([A-Z]\w{3,5})\}|\\.|\[\^?\]?|&&|.", re.DOTALL
)
_BEGIN: Final = re.compile(r"((?:[-\w/](?![*?{]))*+).*", re.ASCII | re.DOTALL)


def _options(most_bytes: int) -> Any:
    options = re2.Options()
    options.log_errors, options.never_capture, options.max_mem = False, True, most_bytes
    return options


def _compiled(pattern: str) -> Any:
    return re2.compile("".join(_translated(pattern)), _options(256 * 1024))


@lru_cache(maxsize=8_192)
def _why_not(pattern: str) -> str:
    try:
        _compiled(pattern)
    except re2.error as error:
        why = error.args[0].decode(errors="replace")
    except ValueError as error:
        why = str(error)
    else:
        return ""
    return f"RE2 does not support {pattern[:_MOST_SHOWN]!a} ({why})"


def why_refused(patterns: tuple[str, ...]) -> str:
    # One that is too long is not kept as a whole, however long it is.
    return next((why for one in patterns if (why := _why_not(one[: LONGEST_PATTERN + 1]))), "")


def checked(pattern: str) -> str:
    if why := why_refused((pattern,)):
        raise ValueError(why)
    return pattern


def _matcher(patterns: tuple[str, ...]) -> Callable[[str], list[int]]:
    """Return what finds the places of the patterns, none refused, that match a whole text."""
    if len(patterns) <= 1:
        every = [_compiled(one) for one in patterns]
        return lambda text: [at for at, one in enumerate(every) if one.fullmatch(text)]
    engine, half = re2.Set.FullMatchSet(_options(32 * 1024 * 1024)), len(patterns) // 2
    for pattern in (*patterns, "(?s:.*)"):
        engine.Add("".join(_translated(pattern)))
    halves: list[Callable[[str], list[int]]] = []
    try:
        engine.Compile()
    except re2.error:
        engine = None

    def matching(text: str) -> list[int]:
        found: list[int] = list((engine and engine.Match(text)) or ())
        if len(patterns) in found:  # Otherwise the engine ran out of memory.
            return [one for one in found if one != len(patterns)]
        if not halves:
            halves.extend(map(_matcher, (patterns[:half], patterns[half:])))
        first, later = halves
        return [*first(text), *(half + one for one in later(text))]

    return matching


@lru_cache(maxsize=8)
def first_of(patterns: tuple[str, ...]) -> Callable[[str], str | None]:
    """Return what finds the first of these, none refused, that matches a whole text, if any."""
    matching = _matcher(patterns)

    def first(text: str) -> str | None:
        return patterns[min(found)] if (found := matching(text)) else None

    # What it found is kept, by keys without the patterns, whose hash takes long.
    return lru_cache(maxsize=_MOST_KNOWN if patterns else 0)(first)


def matches_any(patterns: tuple[str, ...], text: str) -> bool:
    return not why_refused(patterns) and first_of(patterns)(text) is not None


def loosened(pattern: str) -> str:
    """Return a pattern, or for a refused one what matches all texts that begin as it does."""
    if not why_refused((pattern,)):
        return pattern
    return _beginning((pattern,))


def _beginning(patterns: tuple[str, ...]) -> str:
    """Return what matches all texts that begin as all of the patterns do."""
    begins = ["" if "|" in one else _BEGIN.sub(r"\1", one[:_LONGEST_BEGIN], 1) for one in patterns]
    both = zip(min(begins), max(begins), strict=False)
    shared = "".join(one for one, _ in takewhile(lambda two: two[0] == two[1], both))
    return f"(?s:{re2.escape(shared)}.*)"


def _translated(pattern: str) -> Iterator[str]:
    in_class = False
    if len(pattern) > LONGEST_PATTERN:
        raise ValueError(f"over {LONGEST_PATTERN:,} characters")
    for token in _TOKEN.finditer(pattern):
        one, (quoted, sign, name) = token[0], token.groups()
        if in_class and (one[0] == "[" or one == "&&"):
            raise ValueError("unions and intersections of character classes")
        if one in {r"\v", r"\C", r"\0"}:  # They mean something else.
            raise ValueError(f"the escape {one}")
        if quoted is not None:
            yield re2.escape(quoted)
        elif sign:
            posix = f"[:{'^' * (sign == 'P')}{name.lower()}:]"
            yield posix if in_class else f"[{posix}]"
        else:
            in_class = one[0] == "[" or (in_class and one != "]")
            yield r"\z" if one == r"\Z" else one


MOST_NAMED: Final = 10
_MOST_SHOWN: Final = 80
MOST_PATTERNS: Final = 1_000
MOST_CHARACTERS: Final = 100_000
_MOST_HELD: Final = 4_000
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
    well while fewer than ``min_limit`` primary ones are registered with a usage of at most
    ``usage_threshold`` (a fraction).
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


@dataclass(frozen=True, kw_only=True)
class Policies:
    """Isolation policies by name, anti-affinity groups, failure domains and fixed bundles.

    Namespaces of the same anti-affinity group (case-insensitive) are kept on different brokers,
    and first in different domains if domains are in use. ``staying`` bundles are never shed.
    """

    isolation: Mapping[str, IsolationPolicy] = field(default_factory=lambda: MappingProxyType({}))
    anti_affinity: Mapping[Namespace, str] = field(default_factory=lambda: MappingProxyType({}))
    domains: Mapping[BrokerId, str] = field(default_factory=lambda: MappingProxyType({}))
    staying: frozenset[BundleId] = frozenset()

    @cached_property
    def refused(self) -> Mapping[str, str]:
        """Why policies are refused, by their names."""
        found, patterns, characters = dict[str, str](), 0, 0
        for name, one in sorted(self.isolation.items()):
            count, length = patterns + len(one.patterns), characters + sum(map(len, one.patterns))
            much = count > MOST_PATTERNS or length > MOST_CHARACTERS
            if why := (much and _TOO_MUCH) or one.refused:
                found[name] = f"isolation policy {name[:_MOST_SHOWN]} is refused: {why}"
            else:
                patterns, characters = count, length
        return found

    @cached_property
    def groups(self) -> Mapping[str, frozenset[Namespace]]:
        found: dict[str, set[Namespace]] = {}
        for name, group in self.anti_affinity.items():
            found.setdefault(group.casefold(), set()).add(name)
        return {group: frozenset(names) for group, names in found.items()}

    @cached_property
    def reserving(self) -> tuple[str, ...]:
        """The patterns of brokers that are primary in some policy."""
        return tuple(one for policy in self._applied for one in policy.primary)

    @cached_property
    def of_brokers(self) -> tuple[str, ...]:
        every = (one for policy in self._applied for one in (*policy.primary, *policy.secondary))
        return tuple(dict.fromkeys(every))

    @cached_property
    def _applied(self) -> list[IsolationPolicy]:
        return [one for name, one in sorted(self.isolation.items()) if name not in self.refused]

    @cached_property
    def _governing(self) -> tuple[Mapping[str, IsolationPolicy], Callable[[str], str | None]]:
        found: dict[str, IsolationPolicy] = {}
        for one in self._applied:
            for pattern in one.namespaces:
                found.setdefault(pattern, one)
        return found, first_of(tuple(found))

    @cached_property
    def _held(self) -> tuple[Mapping[str, str], Callable[[str], str | None]]:
        found, count = dict[str, str](), 0
        for name, why in self.refused.items():
            patterns = self.isolation[name].namespaces
            count += len(patterns)
            few = map(loosened, patterns)
            for pattern in few if count <= _MOST_HELD else {_beginning(patterns or ("",))}:
                found.setdefault(pattern, why)
        return found, first_of(tuple(found))

    @property
    def refusals(self) -> str:
        """Which policies are refused and why; of many the first, and their number."""
        every = list(self.refused.values())
        more = f"; {len(every) - MOST_NAMED} more are refused" if len(every) > MOST_NAMED else ""
        return "; ".join(every[:MOST_NAMED]) + more

    def governing(self, namespace: Namespace) -> IsolationPolicy | None:
        """Return the policy for ``namespace``; if several match, the first by name."""
        found, first = self._governing
        pattern = first(namespace)
        return None if pattern is None else found[pattern]

    def refusal(self, namespace: Namespace) -> str:
        """Return why the bundles of a namespace stay: a refused policy may be for it, else ""."""
        found, first = self._held
        pattern = first(namespace)
        return "" if pattern is None else found[pattern]

    def group_of(self, namespace: Namespace) -> frozenset[Namespace]:
        group = self.anti_affinity.get(namespace)
        return frozenset() if group is None else self.groups[group.casefold()]


NO_POLICIES: Final = Policies()


def governed(
    policies: Policies, namespaces: Mapping[Namespace, Sequence[int]], count: int
) -> tuple[list[IsolationPolicy | None], Indices]:
    """Return policies, first None, and for each of ``count`` rows of bundles which governs it.

    ``namespaces`` has the rows of each namespace's bundles.
    """
    found: list[IsolationPolicy | None] = [None]
    of: Indices = np.zeros(count, dtype=np.intp)
    places: dict[int, int] = {id(None): 0}
    for name, rows in namespaces.items() if policies.isolation else ():
        policy = policies.governing(name)
        place = places.setdefault(id(policy), len(found))
        if place == len(found):
            found.append(policy)
        if place:
            of[[row for row in rows if row < count]] = place
    return found, of


@lru_cache(maxsize=2_048)
def hosts_matching(
    patterns: tuple[str, ...], brokers: tuple[BrokerId, ...], among: tuple[str, ...] = ()
) -> Mask:
    """Return the brokers that any of the patterns match, which are matched with all ``among``."""
    every = among or patterns
    if why_refused(patterns):
        return np.zeros(len(brokers), dtype=np.bool_)
    rows = [every.index(one) for one in patterns]
    return np.asarray(_matched(every, brokers)[rows].any(axis=0))


@lru_cache(maxsize=4)
def _matched(patterns: tuple[str, ...], brokers: tuple[BrokerId, ...]) -> Mask:
    found, matching = np.zeros((len(patterns), len(brokers)), dtype=np.bool_), _matcher(patterns)
    for at, broker in enumerate(brokers):
        found[matching(broker.rpartition(":")[0]), at] = True
    return found


def open_to(
    policies: Policies,
    policy: IsolationPolicy | None,
    brokers: tuple[BrokerId, ...],
    registered: tuple[BrokerId, ...] | None = None,
    fit: Mask | bool = True,
) -> Mask:
    """Return which of ``brokers`` may take bundles.

    With a policy these are its primary brokers, and its secondary ones while fewer than
    ``min_limit`` primary brokers are ``registered`` (by default ``brokers``) and ``fit``; without
    one, the brokers that are primary in no policy.
    """
    every = policies.of_brokers
    if policy is not None:
        primary = hosts_matching(policy.primary, brokers, every)
        up = primary if registered is None else hosts_matching(policy.primary, registered, every)
        if np.count_nonzero(up & fit) >= policy.min_limit:
            return primary
        return primary | hosts_matching(policy.secondary, brokers, every)
    return ~hosts_matching(policies.reserving, brokers, every)
