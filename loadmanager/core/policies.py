r"""Isolation policies and anti-affinity groups; patterns of Java, matched in linear time by RE2.

Texts are names of namespaces and hosts, in ASCII without white space: where RE2 and Java differ for
other characters (``\s``, ``.``, ``\b``) nothing is translated.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import re2

from loadmanager.core.columns import Mask
from loadmanager.core.ids import BrokerId, BundleId, Namespace

LONGEST_PATTERN: Final = 1_000
_MOST_KNOWN: Final = 131_072
_TOKEN: Final = re.compile(
    r"\\Q((?:[^\\]|\\(?!E))*+)(?:\\E)?|\\([pP])\{([A-Z]\w{3,5})\}|\\.|\[\^?\]?|&&|.", re.DOTALL
)
_BEGIN: Final = re.compile(r"([-\w/]*+)([*?{]?)", re.ASCII)


def _options(most_bytes: int) -> Any:
    options = re2.Options()
    options.log_errors, options.never_capture, options.max_mem = False, True, most_bytes
    return options


@lru_cache(maxsize=1_024)
def _compiled(pattern: str) -> tuple[Any, str]:
    try:
        return re2.compile("".join(_translated(pattern)), _options(256 * 1024)), ""
    except re2.error as error:
        why = error.args[0].decode(errors="replace")
    except ValueError as error:
        why = str(error)
    return None, f"RE2 does not support {pattern[:80]!a} ({why})"


@lru_cache(maxsize=32_768)
def why_refused(patterns: tuple[str, ...]) -> str:
    return next((why for _, why in map(_compiled, patterns) if why), "")


def checked(pattern: str) -> str:
    if why := why_refused((pattern,)):
        raise ValueError(why)
    return pattern


@lru_cache(maxsize=64)
def _engine(patterns: tuple[str, ...]) -> Any:
    """Return what matches all at once, and one that matches any text; None if it is too large."""
    found = re2.Set.FullMatchSet(_options(32 * 1024 * 1024))
    for pattern in (*patterns, "(?s:.*)"):
        found.Add("".join(_translated(pattern)))
    try:
        found.Compile()
    except re2.error:
        return None
    return found


@lru_cache(maxsize=512)
def first_of(patterns: tuple[str, ...]) -> Callable[[str], str | None]:
    """Return what finds the first of these, none refused, that matches a whole text, if any."""
    # What it found is kept, by keys without the patterns, whose hash takes long.
    return lru_cache(maxsize=_MOST_KNOWN)(partial(_first, patterns))


def _first(patterns: tuple[str, ...], text: str) -> str | None:
    if len(patterns) <= 1:
        return next((one for one in patterns if _compiled(one)[0].fullmatch(text)), None)
    engine = _engine(patterns)
    found: tuple[int, ...] = tuple((engine and engine.Match(text)) or ())
    if len(patterns) in found:  # Otherwise the engine ran out of memory.
        return (*patterns, None)[min(found)]
    half = len(patterns) // 2
    first = _first(patterns[:half], text)
    return _first(patterns[half:], text) if first is None else first


def matches_any(patterns: tuple[str, ...], text: str) -> bool:
    return not why_refused(patterns) and first_of(patterns)(text) is not None


def loosened(pattern: str) -> str:
    """Return a pattern, or for a refused one what matches all texts that begin as it does."""
    if not why_refused((pattern,)):
        return pattern
    ((literal, repeated),) = _BEGIN.findall(pattern)[:1]
    literal = "" if "|" in pattern else literal[: -1 if repeated else None]
    return f"(?s:{re2.escape(literal)}.*)"


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
    _first: Callable[[str], str | None] = field(init=False, repr=False, compare=False)
    _first_held: Callable[[str], str | None] = field(init=False, repr=False, compare=False)

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
        found = {"_first": first_of(tuple(governing)), "_first_held": first_of(tuple(held))}
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
        pattern = self._first(namespace)
        return None if pattern is None else self._governing[pattern]

    def refusal(self, namespace: Namespace) -> str:
        """Return why the bundles of a namespace stay: a refused policy may be for it, else ""."""
        pattern = self._first_held(namespace)
        return "" if pattern is None else self._held[pattern]

    def group_of(self, namespace: Namespace) -> frozenset[Namespace]:
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
    fit: Mask | bool = True,
) -> Mask:
    """Return which of ``brokers`` may take bundles.

    With a policy these are its primary brokers, and its secondary ones while fewer than
    ``min_limit`` primary brokers are ``registered`` (by default ``brokers``) and ``fit``; without
    one, the brokers that are primary in no policy.
    """
    if policy is not None:
        primary = hosts_matching(policy.primary, brokers)
        up = primary if registered is None else hosts_matching(policy.primary, registered)
        if np.count_nonzero(up & fit) >= policy.min_limit:
            return primary
        return primary | hosts_matching(policy.secondary, brokers)
    applied = (one for name, one in policies.isolation.items() if name not in policies.refused)
    patterns = (pattern for one in applied for pattern in one.primary)
    return ~hosts_matching(tuple(patterns), brokers)
