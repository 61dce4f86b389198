"""Learns the cost of traffic while the cluster runs.

The usage of resource r on broker b is modelled as

    usage[b, r] = background[b, r]
                  + (common[r] + speed[b, r] * (unit_costs[r] . served[b])) / limit[b, r]

a fraction of the limit. Unit costs, and what each broker uses without work, are common to the
cluster; background and speed belong to a broker. Each report is used once.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import BrokerColumns, Mask
from loadmanager.core.joint.broker_figures import SPEEDS, BrokerFigures
from loadmanager.core.joint.served import fractions, served_by
from loadmanager.core.joint.unit_costs import CostSums, solved
from loadmanager.core.scores import RESOURCES, FloatArray

FULL: Final = 0.97
"""A broker that uses this fraction of a resource may have more demand than its usage shows."""

_KEPT_PER_MIN: Final = 0.98
_HUBER_SDS: Final = 3.0
_NOISE_LOOKS: Final = 5
_MOST_NOISE: Final = 0.1
_SUPPOSED_NOISE: Final = 0.01

_IDLE: Final = 0.1
"""Work of each kind up to which a broker is idle, as a fraction of the mean."""

_ALIKE: Final = 0.1
"""How far an idle broker's usage may be above the least of all, which others use as well then."""

_LAGS: Final = 0.03
"""Error of a usage that may be of the time before the work began, in fractions of the limit."""

_UNSETTLED: Final = 0.2
"""Error of a usage that was measured over a start or a change of bundles, as a fraction of it or,
if that is more, of brokers' mean usage."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Learned:
    """The learned state at ``at_s``.

    ``costs`` is (`RESOURCES`, `KINDS` and one), in the units of load reports per unit of work; the
    last are of a broker without work.
    ``noise`` (`RESOURCES`) is the mean squared prediction error, in fractions, over ``looks``
    (`RESOURCES`) at fresh reports. ``varies`` is whether any report had a variance.
    """

    at_s: float
    costs: FloatArray
    sums: CostSums
    noise: FloatArray
    looks: FloatArray
    brokers: BrokerFigures
    varies: bool = False

    @classmethod
    def nothing(cls, view: ClusterView) -> "Learned":
        sums = CostSums.nothing()
        return cls(
            at_s=view.now_s,
            costs=solved(sums),
            sums=sums,
            noise=np.full(len(RESOURCES), _SUPPOSED_NOISE**2),
            looks=np.zeros(len(RESOURCES)),
            brokers=BrokerFigures.unknown(),
        )

    @property
    def unit_costs(self) -> FloatArray:
        return self.costs[:, :-1]

    def varying(self, work: FloatArray, limit: FloatArray) -> FloatArray:
        """Return (brokers, `RESOURCES`): the usage of ``work`` at speed 1, in fractions."""
        return fractions(work @ self.unit_costs.T, limit)

    def without_work(self, limit: FloatArray) -> FloatArray:
        """Return (brokers, `RESOURCES`): what every broker uses without work, in fractions."""
        return fractions(np.broadcast_to(self.costs[:, -1], limit.shape), limit)

    def background(self, limit: FloatArray) -> FloatArray:
        """Return (brokers, `RESOURCES`): the usage of each broker but for its work."""
        return np.asarray(self.brokers.background + self.without_work(limit))

    def after(self, view: ClusterView) -> "Learned":
        """Return the state after the reports of ``view``, with the brokers of the view."""
        columns = view.brokers.reported
        known = replace(self, brokers=self.brokers.of(columns), at_s=view.now_s)
        minutes = max(view.now_s - self.at_s, 0.0) / 60.0
        fresh = columns.seen_s > known.brokers.seen_s
        varies = known.varies or not np.isnan(columns.variance).all()
        known = replace(known, varies=varies)
        known = known.regressed(columns, fresh, _KEPT_PER_MIN**minutes)
        usage, work = fractions(columns.usage, columns.limit), served_by(columns)
        varying = known.varying(work, columns.limit)
        common = known.without_work(columns.limit)
        surprise = usage - common - known.brokers.expected(varying)
        counts = fresh[:, np.newaxis] & (columns.limit > 0)
        teaches = counts & ((usage < FULL) | (surprise > 0))
        brokers = known.brokers.after(
            usage - common, varying, known.measured_error(columns), teaches, minutes
        )
        settled = known.settled(columns)
        seen = counts & (usage < FULL) & settled[:, np.newaxis]
        looks = np.minimum(known.looks + seen.any(axis=0), _NOISE_LOOKS)
        square = np.where(seen, np.minimum(surprise**2, _MOST_NOISE**2), 0.0).sum(axis=0)
        mean = square / np.maximum(seen.sum(axis=0), 1)
        step = np.where(seen.any(axis=0), 1.0 / np.maximum(looks, 1), 0.0)
        return replace(
            known,
            noise=known.noise + step * (mean - known.noise),
            looks=looks,
            brokers=brokers.seen(columns.seen_s, fresh, usage, work, settled.astype(np.float64)),
        )

    def settled(self, columns: BrokerColumns) -> Mask:
        """Return (B,): reports over a constant set of bundles: others have no variance."""
        known = ~np.isnan(columns.variance).all(axis=1)
        return np.asarray(known | (not self.varies))

    def measured_error(self, columns: BrokerColumns) -> FloatArray:
        """Return (brokers, `RESOURCES`): the mean squared error of a measured usage, in fractions.

        It is the error of the model plus the variance of usage between samples, supposed where a
        report has none because it covers a change. Usage of a broker that has just appeared, or
        whose bundles have just changed, may be of the time before.
        """
        usage = fractions(columns.usage, columns.limit)
        varied = fractions(columns.variance, columns.limit**2)
        least = usage.sum(axis=0) / max(len(usage), 1)
        supposed = (_UNSETTLED * np.maximum(usage, least)) ** 2
        supposed = np.where(self.settled(columns)[:, np.newaxis], 0.0, supposed)
        varied = np.where(np.isnan(varied), supposed, varied)
        young = (self.brokers.weights[1] == 0)[:, np.newaxis]
        return np.asarray((0.03 * usage + 0.005) ** 2 + varied + _LAGS**2 * young)

    def regressed(self, columns: BrokerColumns, fresh: Mask, kept: float) -> "Learned":
        work, brokers = served_by(columns), self.brokers
        usage = fractions(columns.usage, columns.limit)
        expected = brokers.expected(self.varying(work, columns.limit))
        expected = expected + self.without_work(columns.limit)
        began = self.sums.weight > 0
        mean = work.sum(axis=0) / max(len(work), 1)
        busy = (work > _IDLE * mean).any(axis=1)[:, np.newaxis]
        teaches = fresh[:, np.newaxis] & (columns.limit > 0)
        # What idle brokers use above the least is of other processes.
        teaches &= busy | (busy.any() & (usage <= usage.min(axis=0, initial=np.inf) + _ALIKE))
        # The usage of a full broker is only a lower bound of the cost.
        teaches &= (usage < FULL) | (usage > expected)
        sd = np.sqrt(self.measured_error(columns))
        weight = np.where(teaches, 1.0 / sd**2, 0.0)
        off = np.abs(usage - expected) / sd
        weight *= np.where(began & (off > _HUBER_SDS), _HUBER_SDS / np.maximum(off, 1.0), 1.0)
        background = np.where(busy, brokers.background, 0.0)
        speed = np.maximum(brokers.speed, SPEEDS[0])
        target = (usage - background) / speed
        every = np.broadcast_to(work[:, np.newaxis, :], (*usage.shape, work.shape[1]))
        amounts = np.concatenate([every, 1.0 / speed[:, :, np.newaxis]], axis=2)
        scaled = fractions(amounts, columns.limit[:, :, np.newaxis])
        sums = self.sums.after(kept, weight, scaled, target, usage)
        return replace(self, sums=sums, costs=solved(sums))
