"""The cost model learned from history: the cost of traffic on each class of brokers.

The cost of a bundle on a broker is the sum of its rates times the terms of the broker's class,
times a factor: the broker's current usage above its background, relative to the usage that the
class's terms predict for all its traffic. With this factor the costs of a broker's bundles add
up to its usage above the background, and brokers that are faster or slower than their class are
followed. The factor is damped when there is so little traffic that it would be mostly noise.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import BrokerColumns, Indices, Mask
from loadmanager.core.cost.document import RATES, ClassCosts, CostDocument, Term
from loadmanager.core.cost.traffic_share import CostModel, TrafficShare
from loadmanager.core.cost.trust import distrust
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.scores import RESOURCES, FloatArray

LEAST_FACTOR: Final = 0.5
MOST_FACTOR: Final = 2.0
"""A broker further from its class than this is measured wrongly or runs other processes."""

SUPPOSED_FRACTION: Final = 0.1
"""Fraction of a broker's limit that is assumed to be used as the class predicts."""


@dataclass(frozen=True, eq=False, slots=True)
class _Fleet:
    """The brokers of a view, with the class and the background usage of each."""

    names: tuple[BrokerId, ...]
    reported: tuple[str, ...]
    classes: Indices
    backgrounds: FloatArray


@dataclass(slots=True)
class _Kept:
    """A cache for the last view: a round uses the same brokers many times.

    Each entry is replaced as a whole: rounds may be computed in two threads at once.
    """

    fleet: _Fleet | None = None
    factors: tuple[BrokerColumns, FloatArray] | None = None


@dataclass(frozen=True, slots=True)
class LearnedCost:
    """The costs of a document where they are good enough (see `trust`), else of ``fallback``.

    A broker belongs to the class that it reports. A broker that reports none belongs to the
    class in which history observed it, or to the class without a name. The fallback applies to a
    class that is not in the document, and to a bundle that was never measured.
    """

    document: CostDocument
    fallback: CostModel = field(default_factory=TrafficShare)
    _terms: FloatArray = field(init=False, repr=False, compare=False)
    _trusted: Mask = field(init=False, repr=False, compare=False)
    _class_backgrounds: FloatArray = field(init=False, repr=False, compare=False)
    _seen_in: dict[BrokerId, str] = field(init=False, repr=False, compare=False)
    _kept: _Kept = field(init=False, repr=False, compare=False, default_factory=_Kept)

    def __post_init__(self) -> None:
        """Convert the terms to arrays; the last class is for brokers of unknown class."""
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
        """Return the usage of ``bundle``, at most the usage of its broker.

        For a bundle without an owner it is the mean over all brokers.
        """
        otherwise = self.fallback.usage(view, bundle, source)
        rates = view.bundles.work(bundle)
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
        """Return the usage of ``bundle`` on each of ``rows``."""
        rates = view.bundles.work(bundle)
        if rates is None:
            return self.fallback.elsewhere(view, bundle, source, usage, rows)
        fleet = self._fleet(view.brokers)
        classes = fleet.classes[rows]
        learned = (self._terms @ rates)[classes] * self._factors(view.brokers.reported)[rows]
        return np.where(self._trusted[classes], learned, usage)

    def prices(self, brokers: BrokerColumns) -> tuple[FloatArray, Mask]:
        """Return the cost per unit of each of `RATES` on each broker, and which costs are trusted.

        The shapes are (brokers, resources, rates) and (brokers, resources). Replays use it for
        all bundles of a cluster at once.
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
        """Return each broker's usage relative to the prediction of its class."""
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
        """Return the median of a class, used for brokers that are not in history."""
        known = [self.document.backgrounds.get(broker, {}) for broker in costs.brokers]
        return [_median([one[name] for one in known if name in one]) for name in RESOURCES]


def _terms(costs: ClassCosts) -> list[list[float]]:
    nothing = Term(0.0, 0.0, 0.0)
    return [
        [costs.resources.get(resource, {}).get(rate, nothing).value for rate in RATES]
        for resource in RESOURCES
    ]


def _median(terms: list[Term]) -> float:
    return float(np.median([one.value for one in terms])) if terms else 0.0
