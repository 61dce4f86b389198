"""Limits on which of the proposed moves may begin now.

Limits count unloads, whatever their outcome, because each one interrupts clients: a move counts
when it begins, and again for each further unload.
A decision requires a sample begun after the last move ended: an older sample shows loads at
their former brokers.
"""

import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Final

from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BundleId, Namespace, namespace_of

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY: Final = "|".join(_DAYS)
_TEXT: Final = re.compile(
    rf"(?:(?P<first>{_DAY})(?:-(?P<last>{_DAY}))? )?"
    r"(?P<from_h>\d\d):(?P<from_m>[0-5]\d)-(?P<to_h>\d\d):(?P<to_m>[0-5]\d)",
    re.ASCII,
)
_DAY_MINUTES: Final = 24 * 60
_WEEK_DAYS: Final = 7


class InvalidWindow(LoadManagerError, ValueError):
    """A text that does not denote a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveWindow:
    """A daily window on some days (0 is Monday); past midnight if it ends before it begins."""

    text: str
    days: frozenset[int]
    from_minute: int
    to_minute: int

    def holds(self, day: int, minute: int) -> bool:
        if self.from_minute < self.to_minute:
            return day in self.days and self.from_minute <= minute < self.to_minute
        before = (day - 1) % _WEEK_DAYS
        return (day in self.days and minute >= self.from_minute) or (
            before in self.days and minute < self.to_minute
        )


def parse_window(text: str) -> MoveWindow:
    """Raises `InvalidWindow`: the text is not a window."""
    found = _TEXT.fullmatch(" ".join(text.lower().split()))
    at = found.groupdict() if found else {"from_h": "24", "from_m": "0", "to_h": "0", "to_m": "0"}
    begin = int(at["from_h"]) * 60 + int(at["from_m"])
    end = int(at["to_h"]) * 60 + int(at["to_m"])
    if begin >= _DAY_MINUTES or end > _DAY_MINUTES:
        raise InvalidWindow(
            f"{text[:60]!r}: expected a time such as 'Mon-Fri 02:00-05:00' or '22:00-04:30'"
        )
    days = frozenset(range(_WEEK_DAYS))
    if at["first"]:
        first, last = _DAYS.index(at["first"]), _DAYS.index(at["last"] or at["first"])
        count = (last - first) % _WEEK_DAYS + 1
        days = frozenset((first + number) % _WEEK_DAYS for number in range(count))
    return MoveWindow(text=text, days=days, from_minute=begin, to_minute=end)


_MINUTE_S: Final = 60.0
_HOUR_S: Final = 3600.0
_SLOT_S: Final = 10.0
_KEPT_PART: Final = 4
_LEAST_PER_HOUR: Final = 8


class HeldReason(StrEnum):
    """Why nothing moves, or not all that should. A closed set: these values label a metric."""

    PAUSED = "paused"
    BUDGET = "budget"
    WINDOW = "window"
    SETTLING = "settling"  # A broker joined, left or restarted.
    BROKER = "broker"  # Some brokers or bundles are left out, by name.
    MIGRATION = "migration"  # Brokers run different load managers.
    LEADERSHIP = "leadership"  # It is uncertain whether this controller leads.
    SAMPLE = "sample"  # The sample shows bundles at their former brokers.
    UNREADABLE = "unreadable"  # No broker answers, or a reading fails.
    WORK = "work"  # The round had used all steps that it may take to decide.


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLimits:
    """Limits on moves; of ``topics_at_once`` the first bundle under way is exempt."""

    per_minute: int = 30
    per_hour: int = 300
    per_namespace: int = 20
    at_once: int = 4
    topics_at_once: int = 5000
    windows: Sequence[MoveWindow] = ()

    @property
    def kept_per_hour(self) -> int:
        """The part of the hourly moves that is kept for lost and draining brokers: a quarter."""
        return self.per_hour // _KEPT_PART if self.per_hour >= _LEAST_PER_HOUR else 0

    def closed(self, day: int, minute: int) -> str:
        if not self.windows or any(one.holds(day, minute) for one in self.windows):
            return ""
        return f"outside {' and '.join(one.text for one in self.windows)}"


@dataclass(frozen=True, slots=True)
class Begun:
    """Moves of one namespace that began ``age_s`` ago, "" if only the hour still counts them."""

    age_s: float
    namespace: Namespace
    count: int


@dataclass(slots=True)
class MoveBudget:
    """Counts moves against limits. Times are in seconds on any monotonic clock."""

    limits: MoveLimits
    _begun: deque[tuple[float, Namespace]] = field(default_factory=deque)
    _under_way: dict[BundleId, tuple[float, Namespace]] = field(default_factory=dict)
    _last_end_s: float = float("-inf")

    def may_decide_on(self, sample_began_s: float) -> bool:
        return not self._under_way and sample_began_s >= self._last_end_s

    def exhausted(self, bundle: BundleId, now_s: float, *, urgent: bool = False) -> str:
        """Return the limit that prevents a bundle from moving now, "" for none."""
        if why := self.used_up(now_s, urgent=urgent):
            return why
        namespace = namespace_of(bundle)
        if self._recent(now_s)[namespace] >= self.limits.per_namespace:
            return f"{self.limits.per_namespace} moves a minute of {namespace}"
        return ""

    def half_used(self, now_s: float) -> bool:
        """Return whether bundles without traffic leave the rest of the hour's moves to others."""
        return self._count(now_s) >= (self.limits.per_hour + 1) // 2

    def used_up(self, now_s: float, *, urgent: bool = False) -> str:
        """Return the limit that prevents every bundle from moving now, "" for none."""
        limits, count = self.limits, self._count(now_s)
        if count >= limits.per_hour:
            return f"{limits.per_hour} moves an hour"
        if self._recent(now_s).total() >= limits.per_minute:
            return f"{limits.per_minute} moves a minute"
        usual = limits.per_hour - limits.kept_per_hour
        if count >= usual and not urgent:
            kept = f"{limits.kept_per_hour} are kept for lost and draining brokers"
            return f"{usual} of {limits.per_hour} moves an hour: {kept}"
        return ""

    def _count(self, now_s: float) -> int:
        while self._begun and self._begun[0][0] <= now_s - _HOUR_S:
            self._begun.popleft()
        return len(self._begun)

    def _recent(self, now_s: float) -> Counter[Namespace]:
        return Counter(name for at_s, name in self._begun if at_s > now_s - _MINUTE_S)

    def begin(self, bundle: BundleId, now_s: float) -> None:
        self._under_way[bundle] = counted = (now_s, namespace_of(bundle))
        self._begun.append(counted)

    def again(self, bundle: BundleId, now_s: float) -> None:
        self._begun.append((now_s, namespace_of(bundle)))

    def end(self, bundle: BundleId, now_s: float, *, unsent: bool = False) -> None:
        """End a move; one that ends ``unsent`` does not count."""
        counted = self._under_way.pop(bundle, None)
        if unsent and counted is not None and counted in self._begun:
            self._begun.remove(counted)
        self._last_end_s = now_s

    def begun(self, now_s: float, planned: Iterable[BundleId] = ()) -> tuple[Begun, ...]:
        """Return the moves of the last hour, oldest first; ``planned`` moves count as begun now.

        There is at most one entry per namespace and second of the last minute, and one per ten
        seconds before that. Ages are rounded down.
        """
        moves = [*self._begun, *((now_s, namespace_of(bundle)) for bundle in planned)]
        counts: Counter[tuple[float, Namespace]] = Counter()
        for at_s, namespace in moves:
            age_s = max(now_s - at_s, 0.0)
            if age_s < _MINUTE_S:
                counts[float(age_s // 1), namespace] += 1
            elif age_s < _HOUR_S:
                counts[age_s // _SLOT_S * _SLOT_S, Namespace("")] += 1
        return tuple(Begun(*key, counts[key]) for key in sorted(counts, reverse=True))

    def resume(self, begun: Iterable[Begun], now_s: float) -> None:
        oldest_first = sorted(begun, key=lambda one: -one.age_s)
        moves = [[(now_s - one.age_s, one.namespace)] * one.count for one in oldest_first]
        self._begun = deque(chain.from_iterable(moves))
