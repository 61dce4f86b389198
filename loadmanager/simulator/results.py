"""The record of one simulation (true state over time, moves, refusals) and its scores."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.averages import BundleAverages
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import LoadReport
from loadmanager.core.plan import Cause
from loadmanager.core.planner import Plan

_CPU: Final = 0
"""The last axis of arrays has the resources of a modelled broker: CPU, memory, network in, out."""

Floats = NDArray[np.float32]


class Why(StrEnum):
    SHED = "shed"
    PLACED = "placed"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRecord:
    """A move of one bundle. ``source`` is None if it had no owner.

    The rates are the true ones at the time of the order. ``interrupted_client_s`` is the sum of the
    waiting times of its clients. The target serves from ``served_at_s`` on, None if it did not
    before the end; no broker served the bundle for ``pause_s``.
    """

    at_s: float
    bundle: BundleId
    source: BrokerId | None
    target: BrokerId
    why: Why
    cause: Cause
    msgs_per_s: float
    bytes_per_s: float
    interrupted_client_s: float = 0.0
    served_at_s: float | None = None
    pause_s: float = 0.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Timeline:
    """The true state at each recorded moment; T moments, B brokers, four resources.

    ``demand`` is the demand as a fraction of the capacity of the broker, including background;
    above 1 the broker cannot serve all of it, and it is NaN while a broker is absent. ``bound`` is
    a proven lower bound of the largest demand over all resources for any assignment.
    ``unowned_msgs_per_s`` is the traffic of bundles that no broker serves. ``excess`` is the mean
    over brokers of the demand above the common level of an ideal (water-filling) distribution,
    relative to that level. ``unmoved_cpu`` (T, B) is the demand for CPU without moves for load.
    """

    time_s: NDArray[np.float64]
    brokers: tuple[BrokerId, ...]
    demand: Floats
    bytes_per_s: Floats
    bundles: NDArray[np.int32]
    bound: Floats
    unowned_msgs_per_s: Floats
    excess: Floats
    unmoved_cpu: Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """One simulation of one scenario with one pair of strategies and one seed.

    ``refusals`` are numbers of refusals by reason. ``interrupted_client_s`` includes clients of
    crashed brokers, which no move record does; ``interrupted_in_warm_up_client_s`` is the part
    before ``warm_up_s``. ``happened`` are the events as texts with their times.
    """

    warm_up_s: float
    duration_s: float
    timeline: Timeline
    moves: Sequence[MoveRecord]
    rounds: int
    refusals: Mapping[str, int]
    interrupted_client_s: float
    interrupted_in_warm_up_client_s: float = 0.0
    happened: Sequence[tuple[float, str]] = field(default_factory=tuple)


class Witness(Protocol):
    """Receives what a leader and agents would record, in the order of the simulation."""

    def reported(self, at_s: float, report: LoadReport) -> None: ...

    def round_done(
        self,
        at_s: float,
        view: ClusterView,
        plan: Plan,
        averages: Callable[[], Mapping[BundleId, BundleAverages]],
    ) -> None:
        """Receive view and plan of a round; ``averages`` are only valid during the call."""

    def moved(self, record: MoveRecord) -> None: ...


HOT: Final = 0.85
"""A broker above this exceeds Pulsar's default overload threshold."""

Curve = NDArray[np.float64]

BALANCED: Final = 1.15
"""Max/mean of a balanced cluster, as in CockroachDB's simulator."""

_END_FRACTION: Final = 0.1

_THRASH_EXPONENT: Final = 0.8


class Curves:
    """One run after its warm-up, T moments and B brokers, by the brokers that are present.

    Each moment is weighted by ``weight_s``, the time until the next moment or the end of the
    run. Without present brokers a curve is NaN, which means exclude.

    ``demand`` (T, B, 4) is NaN for brokers that are not present. ``largest`` is the
    largest demand of any resource of any broker. ``max_over_mean`` is that over the mean
    demand of the resource whose mean is highest: unevenness of a resource that is not
    scarce counts little, and opposite unevenness of two resources does not cancel.
    ``deviation`` is the standard deviation over the brokers, of the
    resource in which it is largest.
    """

    def __init__(self, run: Run) -> None:
        line = run.timeline
        kept = line.time_s >= min(run.warm_up_s, float(line.time_s[-1]))
        self.demand = line.demand[kept].astype(np.float64)
        present = ~np.isnan(self.demand[:, :, 0])
        filled = np.where(present[:, :, None], self.demand, 0.0)
        count = present.sum(axis=1).astype(np.float64)
        count[count == 0] = np.nan
        mean = filled.sum(axis=1) / count[:, None]
        off = np.where(present[:, :, None], filled - mean[:, None, :], 0.0)
        self.time_s: Curve = line.time_s[kept]
        self.weight_s = _weights(self.time_s, run.duration_s)
        self.largest: Curve = np.where(np.isnan(count), np.nan, filled.max(axis=(1, 2)))
        self.max_over_mean = _ratio(self.largest, mean.max(axis=1))
        self.deviation: Curve = np.sqrt((off**2).sum(axis=1) / count[:, None]).max(axis=1)
        self.bound = line.bound[kept].astype(np.float64)
        # An unowned bundle causes no demand, but counts in the bound.
        self.gap: Curve = np.maximum(_ratio(self.largest, self.bound) - 1.0, 0.0)
        self.excess = line.excess[kept].astype(np.float64)
        self.unmoved_cpu = line.unmoved_cpu[kept].astype(np.float64)
        self.unowned_msgs_per_s = line.unowned_msgs_per_s[kept].astype(np.float64)
        self.bytes_per_s: Curve = np.where(present, line.bytes_per_s[kept], 0.0).sum(axis=1)

    def mean(self, curve: Curve) -> float:
        return _weighted_mean(curve, self.weight_s)

    def percentile(self, curve: Curve, percent: float) -> float:
        """Return the value that the curve does not exceed for ``percent`` of the time."""
        known = ~np.isnan(curve) & (self.weight_s > 0)
        if not known.any():
            return float("nan")
        order = np.argsort(curve[known], kind="stable")
        until = np.cumsum(self.weight_s[known][order])
        place = int(np.searchsorted(until, until[-1] * percent / 100 * (1 - 1e-12)))
        return float(curve[known][order][min(place, len(order) - 1)])

    def end(self, curve: Curve) -> float:
        """Return the mean over the last tenth of the time after the warm-up."""
        until_s = float(self.time_s[0]) + float(self.weight_s.sum())
        begin_s = until_s - _END_FRACTION * float(self.weight_s.sum())
        left_s = np.clip(self.time_s + self.weight_s - begin_s, 0.0, self.weight_s)
        return _weighted_mean(curve, left_s)

    def broker_minutes_above(self, limit: float) -> float:
        above = np.nan_to_num(self.demand, nan=0.0).max(axis=2) > limit
        return float(above.sum(axis=1) @ self.weight_s) / 60

    def time_to_balance_s(self, since_s: float, uneven: Curve) -> float | None:
        """Return the time from ``since_s`` until the cluster stays balanced; None for never.

        From then on ``uneven`` is at or below `BALANCED` to the end.
        """
        lasting = self.weight_s > 0
        time_s, over = self.time_s[lasting], uneven[lasting] > BALANCED
        if over[-1]:
            return None
        last_over = np.flatnonzero(over)
        balanced_s = float(time_s[last_over[-1] + 1] if len(last_over) else time_s[0])
        return max(balanced_s - since_s, 0.0)

    def thrash_percent(self) -> float:
        """Return the movement of CPU against its trend, over all brokers, less that without moves.

        CockroachDB's trend-discounting total variation: per broker all rises U and falls
        D of its demand; with ``m = min(U, D)`` and ``f = (m / max(U, D)) ** 0.8`` it
        counts ``f * (U + D) + (1 - f) * m``, as percent of the range in which all brokers
        moved. A demand that only rises counts 0; one that swings back and forth over
        the whole range counts twice that range for each swing.

        Both are relative to the wider of the two ranges: changes of traffic are not thrashing, and
        a balanced cluster has a narrow range.
        """
        against, spread = _swings(self.demand[:, :, _CPU])
        unmoved_against, unmoved_spread = _swings(self.unmoved_cpu)
        spread = max(spread, unmoved_spread)
        return 100.0 * max(against - unmoved_against, 0.0) / spread if spread else 0.0


def _swings(series: Curve) -> tuple[float, float]:
    """Return movement against the trend, summed over brokers, and the range of the series."""
    if np.isnan(series).all():
        return 0.0, 0.0
    spread = float(np.nanmax(series) - np.nanmin(series))
    # The absence of a broker is no movement.
    steps = np.nan_to_num(np.diff(series, axis=0), nan=0.0)
    up, down = np.maximum(steps, 0.0).sum(axis=0), np.maximum(-steps, 0.0).sum(axis=0)
    less, more = np.minimum(up, down), np.maximum(up, down)
    share = (less / np.where(more > 0, more, 1.0)) ** _THRASH_EXPONENT
    return float((share * (up + down) + (1 - share) * less).sum()), spread


def _weighted_mean(curve: Curve, weight_s: Curve) -> float:
    known = ~np.isnan(curve)
    total_s = float(weight_s[known].sum())
    return float(curve[known] @ weight_s[known]) / total_s if total_s else float("nan")


def _weights(time_s: Curve, duration_s: float) -> Curve:
    weight_s = np.diff(time_s, append=max(duration_s, float(time_s[-1])))
    return weight_s if weight_s.any() else np.ones(len(time_s))


def _ratio(above: Curve, below: Curve) -> Curve:
    """Return the quotient, and 1 for 0 / 0."""
    quotient = above / np.where(below > 0, below, np.where(np.isnan(below), np.nan, 1.0))
    return np.where((below == 0) & (above == 0), 1.0, quotient)


_LEAST_H: Final = 1 / 3600

_WITH_P95: Final = ("max_over_mean", "largest", "gap")

RETURN_S: Final = 3600.0
"""A move back to a former owner within this time counts as a return."""


_PRICE_H: Final = 0.3
"""Duration of a gap of 1 that costs as much as moving everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreDoc:
    name: str
    title: str
    unit: str
    what: str


def _score(title: str, what: str, unit: str = "") -> Any:
    return field(metadata={"title": title, "unit": unit, "what": what})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The scores of one run after its warm-up; for all of them less is better.

    Moves and their costs count from the beginning: a bundle that is moved during the warm-up need
    not be moved after it. Demand is the true load on a broker, including background, as a fraction
    of its capacity; no strategy sees it. "Largest" is over all present brokers and all resources:
    CPU, memory, network in, network out.
    """

    max_over_mean: float = _score(
        "max/mean",
        "Largest demand over the mean demand of the most demanded resource, mean over time; "
        "1 is even.",
    )
    max_over_mean_p95: float = _score("max/mean p95", "The same, 95 % of the time at most.")
    max_over_mean_end: float = _score(
        "max/mean end", "The same, mean over the last tenth of the time."
    )
    deviation: float = _score(
        "deviation",
        "Standard deviation of the demand over the brokers, of the resource in which it is "
        "largest, mean over time.",
    )
    deviation_end: float = _score(
        "deviation end", "The same, mean over the last tenth of the time."
    )
    largest: float = _score("largest", "Largest demand, mean over time; 1 is full.")
    largest_p95: float = _score("largest p95", "The same, 95 % of the time at most.")
    largest_end: float = _score("largest end", "The same, mean over the last tenth.")
    bound: float = _score(
        "lower bound",
        "What the largest demand is at least, whatever the assignment: proven, mean over time.",
    )
    gap: float = _score(
        "gap",
        "How far the largest demand is above a proven lower bound of what any assignment could "
        "reach, as a fraction of the bound, mean over time.",
    )
    gap_p95: float = _score("gap p95", "The same, 95 % of the time at most.")
    gap_end: float = _score("gap end", "The same, mean over the last tenth of the time.")
    excess: float = _score(
        "excess",
        "How far brokers stand above the level to which all load would fill them like water, mean "
        "over the brokers and over time, as a fraction of the level.",
    )
    priced_gap: float = _score(
        "priced gap",
        f"The gap and the price of the moves: to move all traffic, or as many bundles as there "
        f"are, costs as much as a gap of 1 for {_PRICE_H:g} h.",
    )
    overload_min: float = _score(
        "overload", "For how long brokers were asked for more than they have.", "broker-min"
    )
    hot_min: float = _score(
        "hot", f"For how long brokers were asked for more than {HOT} of it.", "broker-min"
    )
    balance_s: float | None = _score(
        "time to balance",
        "From the last event, or the end of the warm-up, until the gap is at most 0.15 for good; "
        "none if it never is.",
        "s",
    )
    moves: int = _score("moves", "Bundles taken from one broker for another, for their load.")
    placed: int = _score("placed", "Bundles without an owner that were given to a broker.")
    drained: int = _score("drained", "Bundles taken from brokers that were to be emptied.")
    returned: int = _score(
        "returned", "Moves that took a bundle back to a broker that had it within the last hour."
    )
    moved_mb_per_s: float = _score(
        "moved", "Traffic of the bundles moved for their load, added up.", "MB/s"
    )
    moved_ratio: float = _score(
        "moved ratio", "The same as a multiple of the whole cluster's mean traffic."
    )
    interrupted_client_s: float = _score(
        "interrupted",
        "How long clients waited for bundles that were moved, placed, or lost in a crash.",
        "client-s",
    )
    thrash_percent: float = _score(
        "thrash",
        "CPU demand that went against its trend, over all brokers, as percent of the range it "
        "moved in, CockroachDB's measure; without what it is when nothing moves.",
        "%",
    )
    thrash_per_broker_percent: float = _score(
        "thrash each", "The same for each broker on average, to compare clusters by.", "%"
    )
    unowned_s: float = _score(
        "unowned", "For how long some bundle with traffic had no owner, at recorded moments.", "s"
    )
    unowned_msgs: float = _score("unowned messages", "Messages that came then.", "messages")
    refusals: int = _score(
        "refusals", "What the rounds left alone, counted by the leader, warm-up included."
    )


SCORE_DOCS: Final = {one.name: ScoreDoc(name=one.name, **one.metadata) for one in fields(Scores)}
"""The descriptions of all scores, in the order in which they are shown."""

FIRST_SCORES: Final = (
    "max_over_mean", "priced_gap", "gap", "excess", "overload_min", "balance_s",
    "moves", "returned", "moved_ratio", "interrupted_client_s", "thrash_per_broker_percent",
)  # fmt: skip
"""Those of tables; the others are in the report and in JSON."""


def scores_of(run: Run) -> Scores:
    curves = Curves(run)
    found = _balance(run, curves) | _cost(run, curves)
    return Scores(**found, priced_gap=_priced_gap(run, found))


def _balance(run: Run, curves: Curves) -> dict[str, Any]:
    thrash_percent = curves.thrash_percent()
    since_s = max([run.warm_up_s, *(at_s for at_s, _ in run.happened)])
    shown = {name: getattr(curves, name) for name in ("deviation", *_WITH_P95)}
    return {
        **{name: curves.mean(curve) for name, curve in shown.items()},
        **{f"{name}_end": curves.end(curve) for name, curve in shown.items()},
        **{f"{name}_p95": curves.percentile(shown[name], 95) for name in _WITH_P95},
        "bound": curves.mean(curves.bound),
        "overload_min": curves.broker_minutes_above(1.0),
        "hot_min": curves.broker_minutes_above(HOT),
        "excess": curves.mean(curves.excess),
        "balance_s": curves.time_to_balance_s(since_s, 1.0 + curves.gap),
        "thrash_percent": thrash_percent,
        "thrash_per_broker_percent": thrash_percent / len(run.timeline.brokers),
    }


def _cost(run: Run, curves: Curves) -> dict[str, Any]:
    moves = run.moves
    shed = [move for move in moves if move.why is Why.SHED]
    served = [move for move in shed if move.served_at_s is not None]
    before = [move for move in served if (move.served_at_s or 0.0) <= run.warm_up_s]
    moved_bytes_per_s = sum(move.bytes_per_s for move in shed)
    traffic_bytes_per_s = curves.mean(curves.bytes_per_s)
    unowned_msgs_per_s = curves.unowned_msgs_per_s
    return {
        "moves": len(shed),
        "placed": sum(move.why is Why.PLACED for move in moves),
        "drained": sum(move.why is Why.DRAINED for move in moves),
        "returned": returned(moves),
        "moved_mb_per_s": moved_bytes_per_s / 1e6,
        "moved_ratio": moved_bytes_per_s / traffic_bytes_per_s if traffic_bytes_per_s > 0 else 0.0,
        "interrupted_client_s": run.interrupted_client_s
        - run.interrupted_in_warm_up_client_s
        + sum(move.interrupted_client_s for move in before),
        "unowned_s": float(curves.weight_s[unowned_msgs_per_s > 0].sum()),
        "unowned_msgs": float(unowned_msgs_per_s @ curves.weight_s),
        "refusals": sum(run.refusals.values()),
    }


def _priced_gap(run: Run, found: Mapping[str, Any]) -> float:
    """Return the gap with the price of moves.

    A gap costs by its duration; a move costs once, by its traffic and by number.
    """
    bundles = int(run.timeline.bundles.sum(axis=1).max())
    moved = found["moved_ratio"] + (found["moves"] / bundles if bundles else 0.0)
    hours = max(run.duration_s / 3600.0, _LEAST_H)
    return float(found["gap"] + _PRICE_H * moved / hours)


def returned(moves: Iterable[MoveRecord]) -> int:
    """Return the number of moves for load that are returns (`RETURN_S`)."""
    left_s: dict[BundleId, dict[BrokerId, float]] = defaultdict(dict)
    count = 0
    for move in sorted(moves, key=lambda one: one.at_s):
        away_s = left_s[move.bundle].get(move.target)
        lately = away_s is not None and move.at_s - away_s <= RETURN_S
        count += move.why is Why.SHED and lately
        if move.source is not None:
            left_s[move.bundle][move.source] = move.at_s
    return count
