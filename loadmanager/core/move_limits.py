"""Limits on which of the proposed moves may begin now.

Limits count unloads, whatever their outcome, because each one interrupts clients: a move counts
when it begins, and again for each further unload.
A decision requires a sample begun after the last move ended: an older sample shows loads at
their former brokers.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from loadmanager.core.ids import BundleId, Namespace, namespace_of
from loadmanager.core.move_windows import MoveWindow

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
    SETTLING = "settling"
    """A broker joined, left or restarted."""

    BROKER = "broker"
    """Some brokers or bundles are left out, by name."""

    MIGRATION = "migration"
    """Brokers run different load managers."""

    LEADERSHIP = "leadership"
    """It is uncertain whether this controller leads."""

    SAMPLE = "sample"
    """The sample shows bundles at their former brokers."""

    UNREADABLE = "unreadable"
    """No broker answers, or a reading fails."""


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
        """Return why no move may begin at a time of the week, "" if moves may begin."""
        if not self.windows or any(one.holds(day, minute) for one in self.windows):
            return ""
        return f"outside {' and '.join(one.text for one in self.windows)}"


@dataclass(frozen=True, slots=True)
class Begun:
    """The number of moves of one namespace that began at least ``age_s`` ago.

    The namespace is "" if only the hourly limit still counts them.
    """

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
        """Return the limit that prevents a bundle from moving now, "" for none.

        ``urgent`` moves may use the part of the hourly budget that is kept for them.
        """
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
        """Count a further unload of a bundle that is under way."""
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
        seconds before that. Ages are rounded down: a move is never recorded as older than it is.
        """
        moves = [*self._begun, *((now_s, namespace_of(bundle)) for bundle in planned)]
        counts: Counter[tuple[float, Namespace]] = Counter()
        for at_s, namespace in moves:
            age_s = max(now_s - at_s, 0.0)
            if age_s >= _HOUR_S:
                continue
            if age_s < _MINUTE_S:
                counts[float(age_s // 1), namespace] += 1
            else:
                counts[age_s // _SLOT_S * _SLOT_S, Namespace("")] += 1
        return tuple(Begun(*key, counts[key]) for key in sorted(counts, reverse=True))

    def resume(self, begun: Iterable[Begun], now_s: float) -> None:
        """Replace the recorded moves by those that another controller began."""
        moves = [
            (now_s - one.age_s, one.namespace)
            for one in sorted(begun, key=lambda one: -one.age_s)
            for _ in range(one.count)
        ]
        self._begun = deque(moves)
