"""The cost model that was learned from history: what traffic costs on each class of brokers.

What a bundle costs a broker is the sum of its rates times the terms of the broker's class,
times what the broker shows now over what the class's terms say of all its traffic. That
factor makes the bundles of a broker add up to what it uses beyond its background, follows
brokers that are faster or slower than their class, and is held back where there is so
little traffic that it would be made of noise.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import BrokerColumns, BundleColumns, Indices, Mask
from loadmanager.core.cost.document import RATES, ClassCosts, CostDocument, Term
from loadmanager.core.cost.traffic_share import CostModel, TrafficShare
from loadmanager.core.cost.trust import distrust
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.scores import RESOURCES, FloatArray

LEAST_FACTOR: Final = 0.5
MOST_FACTOR: Final = 2.0
"""A broker that is further from its class than this is measured wrongly or runs other things."""

SUPPOSED_FRACTION: Final = 0.1
"""So much of a broker's limit is supposed to be used as the class predicts, whatever it shows."""


@dataclass(frozen=True, eq=False, slots=True)
class _Fleet:
    """The brokers of a view: of which class each one is, and what it uses without traffic."""

    names: tuple[BrokerId, ...]
    reported: tuple[str, ...]
    classes: Indices
    backgrounds: FloatArray


@dataclass(slots=True)
class _Kept:
    """What the last view was asked for: a round asks many times of the same brokers.

    Each is replaced as a whole: rounds may be computed in two threads at once.
    """

    fleet: _Fleet | None = None
    factors: tuple[BrokerColumns, FloatArray] | None = None


@dataclass(frozen=True, slots=True)
class LearnedCost:
    """What a document says, where it is good enough (see `trust`), and ``fallback`` elsewhere.

    A broker is of the class that it reports. One that reports none is of the class that
    history saw it in, or of the class without a name. A class that is not in the document
    falls back, and so does a bundle that was never measured.
    """

    document: CostDocument
    fallback: CostModel = field(default_factory=TrafficShare)
    _terms: FloatArray = field(init=False, repr=False, compare=False)
    _trusted: Mask = field(init=False, repr=False, compare=False)
    _class_backgrounds: FloatArray = field(init=False, repr=False, compare=False)
    _seen_in: dict[BrokerId, str] = field(init=False, repr=False, compare=False)
    _kept: _Kept = field(init=False, repr=False, compare=False, default_factory=_Kept)

    def __post_init__(self) -> None:
        """Put the terms into arrays; the last class is that of brokers of no known one."""
        classes = self.document.classes
        terms = np.array([_terms(one) for one in classes.values()])
        terms = terms.reshape(len(classes), len(RESOURCES), len(RATES))
        trusted = [
            [not distrust(self.document, name, one) for one in RESOURCES] for name in classes
        ]
        backgrounds = [self._class_background(one) for one in classes.values()]
        every = (
            ("_terms", np.concatenate([terms, np.zeros((1, *terms.shape[1:]))])),
            ("_trusted", np.array([*trusted, [False] * len(RESOURCES)])),
            ("_class_backgrounds", np.array([*backgrounds, [0.0] * len(RESOURCES)])),
            ("_seen_in", {b: name for name, one in classes.items() for b in one.brokers}),
        )
        for name, value in every:
            object.__setattr__(self, name, value)

    def usage(self, view: ClusterView, bundle: BundleId, source: BrokerId | None) -> FloatArray:
        """Return the usage of ``bundle``, never more than what its broker uses.

        For a bundle that no broker serves it is the mean of what all brokers would use.
        """
        otherwise = self.fallback.usage(view, bundle, source)
        rates = _rates_of(view.bundles, bundle)
        if rates is None:
            return otherwise
        if source is None:
            return self._mean_usage(view, rates, otherwise)
        row = view.row(source)
        fleet = self._fleet(view.brokers)
        of_class = fleet.classes[row]
        learned = (self._terms[of_class] @ rates) * self._factors(view.brokers.reported)[row]
        learned = np.minimum(learned, view.brokers.usage[row])
        return np.where(self._trusted[of_class], learned, otherwise)

    def elsewhere(
        self,
        view: ClusterView,
        bundle: BundleId,
        source: BrokerId | None,
        usage: FloatArray,
        rows: Indices,
    ) -> FloatArray:
        """Return what ``bundle`` would use of each of ``rows``."""
        rates = _rates_of(view.bundles, bundle)
        if rates is None:
            return self.fallback.elsewhere(view, bundle, source, usage, rows)
        fleet = self._fleet(view.brokers)
        classes = fleet.classes[rows]
        learned = (self._terms @ rates)[classes] * self._factors(view.brokers.reported)[rows]
        return np.where(self._trusted[classes], learned, usage)

    def prices(self, brokers: BrokerColumns) -> tuple[FloatArray, Mask]:
        """Return what a unit of each of `RATES` uses on each broker, and what is trusted.

        The first is (brokers, resources, rates), the second (brokers, resources): for all
        bundles of a cluster at once, as replays need it.
        """
        classes = self._fleet(brokers).classes
        prices = self._terms[classes] * self._factors(brokers)[:, :, np.newaxis]
        return prices, self._trusted[classes]

    def _mean_usage(
        self, view: ClusterView, rates: FloatArray, otherwise: FloatArray
    ) -> FloatArray:
        fleet = self._fleet(view.brokers)
        trusted = self._trusted[fleet.classes]
        each = (self._terms @ rates)[fleet.classes] * self._factors(view.brokers.reported)
        counts = trusted.sum(axis=0)
        means = np.where(trusted, each, 0.0).sum(axis=0) / np.maximum(counts, 1)
        return np.where(counts > 0, means, otherwise)

    def _fleet(self, brokers: BrokerColumns) -> _Fleet:
        kept = self._kept.fleet
        if kept and kept.names is brokers.names and kept.reported is brokers.classes:
            return kept
        numbers = {name: number for number, name in enumerate(self.document.classes)}
        named = (
            reported or self._seen_in.get(broker, "")
            for broker, reported in zip(brokers.names, brokers.classes, strict=True)
        )
        classes = np.array([numbers.get(name, len(numbers)) for name in named], dtype=np.intp)
        backgrounds = self._class_backgrounds[classes]
        for row, broker in enumerate(brokers.names):
            terms = self.document.backgrounds.get(broker)
            for column, resource in enumerate(RESOURCES if terms else ()):
                if terms and resource in terms:
                    backgrounds[row, column] = terms[resource].value
        fleet = _Fleet(brokers.names, brokers.classes, classes, backgrounds)
        self._kept.fleet = fleet
        return fleet

    def _factors(self, brokers: BrokerColumns) -> FloatArray:
        """Return what each broker uses over what its class would, for the same traffic."""
        kept = self._kept.factors
        if kept and kept[0] is brokers:
            return kept[1]
        fleet = self._fleet(brokers)
        counts = np.stack([brokers.topics, brokers.connections], axis=1)
        rates = np.concatenate([brokers.traffic, counts], axis=1)
        predicted = np.einsum("crk,bk->bcr", self._terms, rates)
        predicted = predicted[np.arange(len(rates)), fleet.classes]
        supposed = SUPPOSED_FRACTION * brokers.limit
        shown = np.maximum(brokers.usage - fleet.backgrounds, 0.0) + supposed
        measured = (brokers.limit > 0) & (predicted > 0)
        factors = shown / np.where(measured, predicted + supposed, np.inf)
        factors = np.where(measured, np.clip(factors, LEAST_FACTOR, MOST_FACTOR), 1.0)
        self._kept.factors = (brokers, factors)
        return factors

    def _class_background(self, costs: ClassCosts) -> list[float]:
        """Return the median of a class: a broker that history never saw is like the others."""
        known = [self.document.backgrounds.get(broker, {}) for broker in costs.brokers]
        return [_median([one[name] for one in known if name in one]) for name in RESOURCES]


def _rates_of(bundles: BundleColumns, bundle: BundleId) -> FloatArray | None:
    """Return all `RATES` of a measured bundle."""
    row = bundles.row(bundle)
    if row is None or not bundles.known[row]:
        return None
    return np.array([*bundles.short[row], bundles.topics[row], bundles.connections[row]])


def _terms(costs: ClassCosts) -> list[list[float]]:
    nothing = Term(0.0, 0.0, 0.0)
    return [
        [costs.resources.get(resource, {}).get(rate, nothing).value for rate in RATES]
        for resource in RESOURCES
    ]


def _median(terms: list[Term]) -> float:
    return float(np.median([one.value for one in terms])) if terms else 0.0
