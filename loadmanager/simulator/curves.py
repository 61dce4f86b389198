"""The demand on the brokers of a run over time, from which scores are computed."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.simulator.run import Run

Curve = NDArray[np.float64]

BALANCED: Final = 1.15
"""Max/mean of a balanced cluster, as in CockroachDB's simulator."""

_END_FRACTION: Final = 0.1

_THRASH_EXPONENT: Final = 0.8


@dataclass(frozen=True, eq=False, kw_only=True)
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

    time_s: Curve
    weight_s: Curve
    demand: Curve
    largest: Curve
    max_over_mean: Curve
    deviation: Curve
    bound: Curve
    gap: Curve
    excess: Curve
    unmoved_cpu: Curve
    unowned_msgs_per_s: Curve
    bytes_per_s: Curve

    @classmethod
    def of(cls, run: Run) -> "Curves":
        line = run.timeline
        kept = line.time_s >= min(run.warm_up_s, float(line.time_s[-1]))
        present = line.present[kept]
        demand = np.where(present[:, :, None], line.demand[kept].astype(np.float64), np.nan)
        filled = np.where(present[:, :, None], demand, 0.0)
        count = present.sum(axis=1).astype(np.float64)
        count[count == 0] = np.nan
        mean = filled.sum(axis=1) / count[:, None]
        off = np.where(present[:, :, None], filled - mean[:, None, :], 0.0)
        largest = np.where(np.isnan(count), np.nan, filled.max(axis=(1, 2)))
        time_s, bound = line.time_s[kept], line.bound[kept].astype(np.float64)
        return cls(
            time_s=time_s,
            weight_s=_weights(time_s, run.duration_s),
            demand=demand,
            largest=largest,
            max_over_mean=_ratio(largest, mean.max(axis=1)),
            deviation=np.sqrt((off**2).sum(axis=1) / count[:, None]).max(axis=1),
            bound=bound,
            # An unowned bundle causes no demand, but counts in the bound.
            gap=np.maximum(_ratio(largest, bound) - 1.0, 0.0),
            excess=line.excess[kept].astype(np.float64),
            unmoved_cpu=line.unmoved_cpu[kept].astype(np.float64),
            unowned_msgs_per_s=line.unowned_msgs_per_s[kept].astype(np.float64),
            bytes_per_s=np.where(present, line.bytes_per_s[kept], 0.0).sum(axis=1),
        )

    def mean(self, curve: Curve) -> float:
        known = ~np.isnan(curve)
        weight_s = float(self.weight_s[known].sum())
        return float(curve[known] @ self.weight_s[known]) / weight_s if weight_s else float("nan")

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
        known = ~np.isnan(curve)
        total_s = float(left_s[known].sum())
        return float(curve[known] @ left_s[known]) / total_s if total_s else float("nan")

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

    def thrash_percent(self, cpu: int) -> float:
        """Return the movement of CPU against its trend, over all brokers, less that without moves.

        CockroachDB's trend-discounting total variation: per broker all rises U and falls
        D of its demand; with ``m = min(U, D)`` and ``f = (m / max(U, D)) ** 0.8`` it
        counts ``f * (U + D) + (1 - f) * m``, as percent of the range in which all brokers
        moved. A demand that only rises counts 0; one that swings back and forth over
        the whole range counts twice that range for each swing.

        Both are relative to the wider of the two ranges: changes of traffic are not thrashing, and
        a balanced cluster has a narrow range.
        """
        found, unmoved = _Swings.of(self.demand[:, :, cpu]), _Swings.of(self.unmoved_cpu)
        spread = max(found.spread, unmoved.spread)
        return 100.0 * max(found.against - unmoved.against, 0.0) / spread if spread else 0.0


@dataclass(frozen=True, slots=True)
class _Swings:
    """Movement of demand against its trend, summed over brokers, and the range of demand."""

    against: float
    spread: float

    @classmethod
    def of(cls, series: Curve) -> "_Swings":
        if np.isnan(series).all():
            return cls(0.0, 0.0)
        spread = float(np.nanmax(series) - np.nanmin(series))
        # The absence of a broker is no movement.
        steps = np.nan_to_num(np.diff(series, axis=0), nan=0.0)
        up, down = np.maximum(steps, 0.0).sum(axis=0), np.maximum(-steps, 0.0).sum(axis=0)
        less, more = np.minimum(up, down), np.maximum(up, down)
        share = (less / np.where(more > 0, more, 1.0)) ** _THRASH_EXPONENT
        return cls(float((share * (up + down) + (1 - share) * less).sum()), spread)


def _weights(time_s: Curve, duration_s: float) -> Curve:
    weight_s = np.diff(time_s, append=max(duration_s, float(time_s[-1])))
    return weight_s if weight_s.any() else np.ones(len(time_s))


def _ratio(above: Curve, below: Curve) -> Curve:
    """Return the quotient, and 1 for 0 / 0."""
    quotient = above / np.where(below > 0, below, np.where(np.isnan(below), np.nan, 1.0))
    return np.where((below == 0) & (above == 0), 1.0, quotient)
