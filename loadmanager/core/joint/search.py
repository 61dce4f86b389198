"""Moves and swaps that lower a potential by more than they cost.

The potential is ``sum of share * use^8 / 8`` over brokers and resources, with use in units of
the level. Moving a weight ``w`` (1 is the load of a mean broker) from use ``v`` to use ``u``
lowers it by about ``w * (v^7 - u^7)``, for any number of brokers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np

from loadmanager.core.columns import Indices, Mask
from loadmanager.core.filters import FINDING, Limits
from loadmanager.core.joint.standing import Standing
from loadmanager.core.scores import FloatArray

POWER: Final = 8

_WEIGHED: Final = 4_096
"""The bundles of a broker weighed at once; more are weighed in parts, the most promising first."""

_STEPS_OF_A_MOVE: Final = 1_000
_LEAST_GAIN: Final = 1e-9
"""What is less may be rounding, and a bundle be planned to and fro."""

_TARGETS: Final = 24
_SWAP_TARGETS: Final = 6
_SWAP_BUNDLES: Final = 48
_SWAPS_TRIED: Final = 64


@dataclass(frozen=True, slots=True)
class Found:
    """A move of a bundle row between broker rows; ``gain`` is the saving less the price.

    A swap is two moves, each with the gain of both.
    """

    bundle: int
    source: int
    target: int
    gain: float
    swap: bool = False


@dataclass(frozen=True, slots=True)
class Stuck:
    """Why a broker above the level sheds nothing: the move closest to being worth its price.

    ``bundle`` is None if none of its bundles may move, or no broker may take one.
    """

    bundle: int | None = None
    target: int | None = None
    saving: float = 0.0


@dataclass(slots=True, kw_only=True)
class Search:
    """Finds the moves of one round, one by one. ``prices`` (K,) are per bundle row.

    ``found`` is by bundle row. A bundle that is planned to move has its price paid: it may be
    planned to go elsewhere, or to stay, at none. ``unreached`` are brokers for which the moves or
    the steps of the round were exhausted.
    """

    at: Standing
    limits: Limits
    prices: FloatArray
    found: dict[int, Found] = field(default_factory=dict)
    stuck: dict[int, Stuck] = field(default_factory=dict)
    unreached: list[int] = field(default_factory=list)
    _left: FloatArray = field(init=False)
    _low: FloatArray = field(init=False)
    _high: FloatArray = field(init=False)
    _movable: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        # Each step lowers the potential only if no broker takes by less than it gives by.
        self._low, self._high = self.at.low.copy(), np.maximum(self.at.low, self.at.high)
        self._left = self.prices.copy()
        self._movable = [[] for _ in self._low]

    def run(self) -> None:
        """Move bundles off the fullest broker, until no move is worth its price."""
        limits = self.limits
        rows = np.flatnonzero(limits.movable & (self.at.owner >= 0))
        for row, broker in zip(rows.tolist(), self.at.owner[rows].tolist(), strict=True):
            self._movable[broker].append(row)
        uses = self._low.max(axis=1, initial=0.0).tolist()
        even, gives = self.at.tolerance, limits.gives
        heap = [(-use, broker) for broker, use in enumerate(uses) if use > even and gives[broker]]
        heapify(heap)
        while heap:
            use, broker = heappop(heap)
            if -use != self._low[broker].max():
                continue  # It has changed since, and is queued again.
            if len(self.found) >= limits.moves or limits.steps.left <= 0:
                self.unreached.append(broker)
                continue
            for changed in self._give(broker):
                now = float(self._low[changed].max())
                if now > even and gives[changed]:
                    heappush(heap, (-now, changed))

    def _give(self, broker: int) -> tuple[int, ...]:
        """Plan the best move or swap off a broker, and return the brokers that it changes.

        If none is worth it, record why.
        """
        self.stuck.pop(broker, None)
        rows, targets = np.array(self._movable[broker], dtype=np.intp), self._targets(broker)
        self.limits.steps.spend(broker, 2 * len(rows) + len(self.limits.takes))
        best = Stuck()
        for part in self._parts(broker, rows) if len(targets) else ():
            tried = self._best_move(broker, part, targets)
            if isinstance(tried, Found):
                self._take(tried)
                return broker, tried.target
            best = tried if best.bundle is None else best
        room = len(self.found) + 2 <= self.limits.moves and len(self.stuck) < _SWAPS_TRIED
        few = targets[:_SWAP_TARGETS] if room and len(rows) else targets[:0]
        swap = self._best_swap(broker, rows, few)
        if swap is not None:
            for one in swap:
                self._take(one)
            return broker, swap[0].target
        if self.limits.steps.left > 0:
            self.stuck[broker] = best
        else:
            self.unreached.append(broker)
        return ()

    def _parts(self, broker: int, rows: Indices) -> Iterator[Indices]:
        """Yield the bundles in parts while steps are left, without those that no move pays for."""
        if len(rows) > _WEIGHED:
            most = self._drops(broker, rows) / POWER - self._left[rows]
            promising = max(int(np.count_nonzero(most > 0)), 1)
            rows = rows[np.argsort(-most, kind="stable")[:promising]]
        for begin in range(0, len(rows), _WEIGHED):
            if self.limits.steps.left > 0:
                yield rows[begin : begin + _WEIGHED]

    def _targets(self, broker: int) -> Indices:
        rows = np.flatnonzero(self.limits.takes)
        rows = rows[rows != broker]
        height = self._high[rows].max(axis=1) + 1e-3 * self._high[rows].sum(axis=1)
        if len(rows) > _TARGETS:
            lowest = np.argpartition(height, _TARGETS)[:_TARGETS]
            rows, height = rows[lowest], height[lowest]
        return np.asarray(rows[np.argsort(height, kind="stable")])

    def savings(self, broker: int, rows: Indices, targets: Indices) -> FloatArray:
        """Return (rows, targets): the reduction of the potential by each move off ``broker``."""
        at, high = self.at, self._high[targets]
        raised = _eighth(high + at.cost[rows][:, np.newaxis] * at.unit[targets])
        rise = ((raised - _eighth(high)) * at.share[targets]).sum(axis=2)
        return np.asarray((self._drops(broker, rows)[:, np.newaxis] - rise) / POWER)

    def _drops(self, broker: int, rows: Indices) -> FloatArray:
        """Return (rows,): how far each bundle that leaves lowers the part of its broker."""
        at, low = self.at, self._low[broker]
        after = low - at.cost[rows] * at.unit[broker]
        return np.asarray(((_eighth(low) - _eighth(after)) * at.share[broker]).sum(axis=1))

    def _best_move(self, broker: int, rows: Indices, targets: Indices) -> Found | Stuck:
        saving = self.savings(broker, rows, targets)
        gain = saving - self._left[rows][:, np.newaxis]
        self.limits.steps.spend(broker, gain.size)
        for _ in range(len(rows) + 1):  # Each bundle is checked at most once before one is chosen.
            row, column = divmod(int(gain.argmax()), len(targets))
            bundle, target, best = int(rows[row]), int(targets[column]), float(gain[row, column])
            may = self._open_to(broker, bundle, gain.size)
            if not may[target]:
                gain[row, ~may[targets]] = -np.inf
            elif best <= _LEAST_GAIN:
                return Stuck(bundle, target, float(saving[row, column]))
            else:
                return Found(bundle, broker, target, best)
            if self.limits.steps.left <= 0:
                break
        return Stuck()

    def _best_swap(
        self, broker: int, rows: Indices, targets: Indices
    ) -> tuple[Found, Found] | None:
        rows = self._costliest(broker, rows)
        best: tuple[Found, Found] | None = None
        for target in targets.tolist():
            others = np.array(self._movable[target], dtype=np.intp)
            if not len(others) or not (self.limits.gives[target] and self.limits.takes[broker]):
                continue
            self.limits.steps.spend(broker, len(others))
            others = self._costliest(broker, others)
            gain = self._exchanged(broker, rows, target, others)
            self.limits.steps.spend(broker, gain.size)
            row, column = divmod(int(gain.argmax()), len(others))
            bundle, other = int(rows[row]), int(others[column])
            most = float(gain[row, column])
            better = most > (best[0].gain if best else _LEAST_GAIN)
            if better and all(
                self._open_to(broker, one, gain.size)[to]
                for one, to in ((bundle, target), (other, broker))
            ):
                best = (
                    Found(bundle, broker, target, most, swap=True),
                    Found(other, target, broker, most, swap=True),
                )
        return best

    def _exchanged(self, broker: int, rows: Indices, target: int, others: Indices) -> FloatArray:
        """Return (rows, others): the gain of exchanging each pair.

        For each resource, the low estimate is used for the broker that loses usage, and the high
        estimate for the one that gains it.
        """
        at = self.at
        net = at.cost[rows][:, np.newaxis] - at.cost[others]
        gives = net > 0
        here = np.where(gives, self._low[broker], self._high[broker])
        there = np.where(gives, self._high[target], self._low[target])
        lowered, raised = here - net * at.unit[broker], there + net * at.unit[target]
        saving = ((_eighth(here) - _eighth(lowered)) * at.share[broker]).sum(axis=2)
        saving += ((_eighth(there) - _eighth(raised)) * at.share[target]).sum(axis=2)
        prices = self._left[rows][:, np.newaxis] + self._left[others]
        return np.asarray(saving / POWER - prices)

    def _costliest(self, broker: int, rows: Indices) -> Indices:
        if len(rows) <= _SWAP_BUNDLES:
            return rows
        cost = self.at.cost[rows, int(self._low[broker].argmax())]
        return np.asarray(rows[np.argsort(-cost, kind="stable")[:_SWAP_BUNDLES]])

    def _open_to(self, broker: int, bundle: int, searched: int) -> Mask:
        restricted = self.limits.restricted
        if restricted is None:
            return self.limits.takes
        mask, steps = restricted.targets(bundle)
        self.limits.steps.spend(broker, searched // 64 + steps, FINDING)
        return mask

    def _take(self, one: Found) -> None:
        cost, unit = self.at.cost[one.bundle], self.at.unit
        for use in (self._low, self._high):
            use[one.source] -= cost * unit[one.source]
            use[one.target] += cost * unit[one.target]
        self._movable[one.source].remove(one.bundle)
        self._movable[one.target].append(one.bundle)
        self.limits.steps.spend(one.source, _STEPS_OF_A_MOVE, "to move its bundles")
        if self.limits.restricted is not None:
            self.limits.restricted.moved(one.bundle, one.target)
        former = self.found.pop(one.bundle, one)
        stays = one.target == former.source
        self._left[one.bundle] = self.prices[one.bundle] if stays else 0.0
        if not stays:
            self.found[one.bundle] = replace(one, source=former.source)


def _eighth(use: FloatArray) -> FloatArray:
    power = np.maximum(use, 0.0)
    power *= power
    power *= power
    power *= power
    return power
