"""Limits on which of the proposed moves may begin now.

Limits count moves when they begin, whatever their outcome, because each one interrupts clients.
A decision requires a sample begun after the last move ended: an older sample shows loads at
their former brokers.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from loadmanager.core.ids import BundleId, Namespace, namespace_of
from loadmanager.core.move_windows import MoveWindow

_MINUTE_S: Final = 60.0
_HOUR_S: Final = 3600.0
_SLOT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLimits:
    per_minute: int = 30
    per_hour: int = 300
    per_namespace: int = 20
    at_once: int = 4
    windows: Sequence[MoveWindow] = ()

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
    _under_way: set[BundleId] = field(default_factory=set)
    _last_end_s: float = float("-inf")

    def may_decide_on(self, sample_began_s: float) -> bool:
        return not self._under_way and sample_began_s >= self._last_end_s

    def exhausted(self, bundle: BundleId, now_s: float) -> str:
        """Return the limit that prevents a bundle from moving now, "" for none."""
        while self._begun and self._begun[0][0] <= now_s - _HOUR_S:
            self._begun.popleft()
        if len(self._begun) >= self.limits.per_hour:
            return f"{self.limits.per_hour} moves an hour"
        recent = Counter(name for at_s, name in self._begun if at_s > now_s - _MINUTE_S)
        if recent.total() >= self.limits.per_minute:
            return f"{self.limits.per_minute} moves a minute"
        namespace = namespace_of(bundle)
        if recent[namespace] >= self.limits.per_namespace:
            return f"{self.limits.per_namespace} moves a minute of {namespace}"
        return ""

    def begin(self, bundle: BundleId, now_s: float) -> None:
        self._begun.append((now_s, namespace_of(bundle)))
        self._under_way.add(bundle)

    def end(self, bundle: BundleId, now_s: float) -> None:
        self._under_way.discard(bundle)
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
