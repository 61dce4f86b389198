from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.filters import Limits
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.joint.ages import Ages
from loadmanager.core.joint.learning import Learned
from loadmanager.core.joint.search import Search
from loadmanager.core.joint.served import fractions, served_in
from loadmanager.core.joint.standing import (
    RATES_ALONE,
    STANDS_OUT,
    TOLERANCE,
    Standing,
    predicted_rates,
    standing,
)
from loadmanager.core.joint.state import JointState
from loadmanager.core.joint.unit_costs import doubt
from loadmanager.core.scores import RESOURCES, FloatArray, ResourceWeights

_MOSTLY: Final = 0.5


class CostSource(StrEnum):
    REPORTS = "reports"
    DEFAULT = "default"
    RATES = "rates"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleCost:
    """Usage of one resource by a bundle on a broker of speed 1, in the unit of load reports.

    If rates are balanced, the resource is that of `RATES_ALONE`, and usage a fraction of the
    cluster's traffic. ``sd`` is the standard deviation of ``usage`` due to the unit costs, in the
    same unit. ``learned_fraction`` is the fraction of the initial variance that reports removed; if
    it is at least half, they are the ``source``, else the source of the initial cost is.
    """

    resource: str
    usage: float
    source: CostSource
    sd: float = 0.0
    learned_fraction: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedUse:
    """One resource of a broker, as fractions of its limit.

    ``predicted`` is from costs, for its bundles and those under way to it; ``background`` is usage
    by anything else. ``speed`` is the cost of work relative to a broker of speed 1. ``noise`` is
    how far reports are from predictions, as a standard deviation. Rates have neither noise nor a
    report.
    """

    resource: str
    predicted: float
    reported: float | None = None
    background: float = 0.0
    speed: float = 1.0
    noise: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Payback:
    """Gain and cost of moving a bundle to a broker, in the unit of the price.

    ``use`` and ``use_with`` are the broker's predicted use before and after the move, of its
    scarcest resource after the move.
    """

    resource: str
    use: float
    use_with: float
    saving: float
    price: float

    @property
    def worth_it(self) -> bool:
        return self.saving > self.price


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighing:
    """How the strategy weighs a broker, or a bundle with its owner's ``uses``.

    ``level`` is the usage of all brokers if load were evenly divisible, of the scarcest resource;
    ``lasting`` the fraction of a change of traffic that is expected to last for ten minutes.
    """

    level: float
    lasting: float
    uses: tuple[PredictedUse, ...] = ()
    costs: tuple[BundleCost, ...] = ()
    paybacks: Mapping[BrokerId, Payback] = field(default_factory=dict)

    def describe_move(self, target: BrokerId) -> str:
        """Return saving and price of a move of the bundle as text; "" if unknown."""
        paid = self.paybacks.get(target)
        if paid is None:
            return ""
        cost = next(one for one in self.costs if one.resource == paid.resource)
        noise = next(one.noise for one in self.uses if one.resource == paid.resource)
        suffix = "" if noise is None else f" (noise {noise:.3f})"
        return (
            f"{target} goes from {paid.use:.3f} to {paid.use_with:.3f} of {paid.resource}{suffix}; "
            f"saves {paid.saving:.4f} and costs {paid.price:.4f}; "
            f"cost known from {cost.source} ({cost.learned_fraction:.0%} learned)"
        )

    @property
    def description(self) -> str:
        """Usage of the fullest resource of the broker as text; "" if unknown."""
        most = max(self.uses, key=lambda one: one.predicted, default=None)
        if most is None:
            return ""
        return f"uses {most.predicted:.3f} of {most.resource}, the level is {self.level:.3f}"


@dataclass(frozen=True, kw_only=True)
class Weigher:
    """Weighs subjects with one learned state and one view.

    ``price`` is the price of moving the weight of a mean broker. A broker sheds nothing up to
    ``tolerance`` times the level.
    """

    view: ClusterView
    state: JointState
    weights: ResourceWeights
    limits: Limits
    price: float
    tolerance: float = TOLERANCE
    mean_s: float = 0.0

    @property
    def stands_out(self) -> bool:
        """Whether a broker that may shed is so far above the level that a round is due."""
        at = self.at
        return at is not None and bool((at.over[self.limits.gives] > STANDS_OUT).any())

    def weighing(self, broker: BrokerId | None, bundle: BundleId | None = None) -> Weighing | None:
        """Return how a broker or its bundle is weighed; None if no broker may shed or take any."""
        at = self.at
        if at is None:
            return None
        source = None if broker is None else self.view.row(broker)
        measured = None if bundle is None else self.view.bundles.measured_row(bundle)
        paybacks: Mapping[BrokerId, Payback] = {}
        if source is not None and measured is not None and at.owner[measured] == source:
            paybacks = self._paybacks(at, source, measured)
        return Weighing(
            level=at.level,
            lasting=self.state.persistence.lasting,
            uses=() if source is None else self._uses(at, source),
            costs=() if measured is None else self._costs(at, measured),
            paybacks=paybacks,
        )

    @cached_property
    def at(self) -> Standing | None:
        """The standing of the brokers; None if none may shed or take any."""
        counted = self.limits.gives | self.limits.takes
        if not counted.any():
            return None
        return standing(self.view, self.state, self.weights, counted, self.tolerance)

    def ages(self, at: Standing) -> Ages:
        return self.state.ages.after(self.view.now_s, self.view.brokers.names, at.over, self.mean_s)

    def search(self, at: Standing, ages: Ages, limits: Limits) -> Search:
        price = self.state.persistence.price(self.price)
        return Search(at=at, limits=limits, prices=ages.prices(price, at.effort, at.owner))

    def _uses(self, at: Standing, row: int) -> tuple[PredictedUse, ...]:
        if at.resources == RATES_ALONE:
            use = float(at.low[row, 0]) * at.level
            return (PredictedUse(resource=at.resources[0], predicted=use),)
        learned, columns = self.state.learned, self.view.brokers.reported
        reported, limit = fractions(columns.usage, columns.limit)[row], columns.limit[row]
        factors = self.weights.as_array()
        return tuple(
            PredictedUse(
                resource=name,
                reported=float(reported[number]),
                predicted=float(at.low[row, column]) * at.level / float(factors[number]),
                background=float(at.background[row, column] * at.level / factors[number]),
                speed=float(at.unit[row, column] * at.level * limit[number] / factors[number]),
                noise=float(np.sqrt(learned.noise[number])),
            )
            for column, (name, number) in enumerate(_numbered(at))
        )

    def _costs(self, at: Standing, row: int) -> tuple[BundleCost, ...]:
        if at.resources == RATES_ALONE:
            usage, source = float(at.cost[row, 0]), CostSource.RATES
            return (BundleCost(resource=at.resources[0], usage=usage, source=source),)
        learned, rates = self.state.learned, predicted_rates(self.view, self.state)
        work = served_in(self.view.bundles, rates)[row]
        return tuple(
            self._cost(learned, name, number, float(learned.unit_costs[number] @ work), work)
            for name, number in _numbered(at)
        )

    def _cost(
        self, learned: Learned, name: str, number: int, usage: float, work: FloatArray
    ) -> BundleCost:
        before, after = doubt(learned.sums, number, work)
        fraction = 1.0 - after / before if before > 0 else 0.0
        return BundleCost(
            resource=name,
            usage=usage,
            sd=after**0.5,
            source=CostSource.REPORTS if fraction >= _MOSTLY else CostSource.DEFAULT,
            learned_fraction=fraction,
        )

    def _paybacks(self, at: Standing, source: int, row: int) -> dict[BrokerId, Payback]:
        search = self.search(at, self.ages(at), self.limits)
        names = self.view.brokers.names
        targets = np.array([one for one in range(len(names)) if one != source], dtype=np.intp)
        saving = search.savings(source, np.array([row], dtype=np.intp), targets)[0]
        after = at.high[targets] + at.cost[row] * at.unit[targets]
        fullest = after.argmax(axis=1)
        return {
            names[target]: Payback(
                resource=at.resources[column],
                use=float(at.high[target, column]) * at.level,
                use_with=float(after[place, column]) * at.level,
                saving=float(saving[place]),
                price=float(search.prices[row]),
            )
            for place, (target, column) in enumerate(
                zip(targets.tolist(), fullest.tolist(), strict=True)
            )
        }


def _numbered(at: Standing) -> list[tuple[str, int]]:
    return [(name, RESOURCES.index(name)) for name in at.resources]
