from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Move
from loadmanager.core.rates import BYTES_IN, BYTES_OUT
from loadmanager.core.scores import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    DIRECT_MEMORY,
    MEMORY,
    FloatArray,
    ResourceWeights,
    weighted_max_usage,
)


class CostModel(Protocol):
    def usage(self, view: ClusterView, bundle: BundleId, source: BrokerId | None) -> FloatArray:
        """Return the usage of ``bundle``, by `RESOURCES`, in the units of load reports.

        ``source`` is the broker that currently serves it, None for none.
        """

    def elsewhere(
        self,
        view: ClusterView,
        bundle: BundleId,
        source: BrokerId | None,
        usage: FloatArray,
        rows: Indices,
    ) -> FloatArray:
        """Return the usage of ``bundle`` on other brokers, given its ``usage`` on the source.

        The result has one row for each of the broker rows ``rows``.
        """


@dataclass(frozen=True, slots=True)
class TrafficShare:
    """A bundle's share of each resource is its share of its broker's traffic.

    CPU is divided half by messages and half by bytes, network by bytes in its direction, direct
    memory by bytes. Heap does not move. For a bundle without an owner, the usage and traffic of
    the whole cluster are used instead of the broker's. A bundle that was never measured costs
    the mean of all bundles, because its assumed traffic may be a multiple of the total traffic
    of a small cluster.
    """

    def usage(self, view: ClusterView, bundle: BundleId, source: BrokerId | None) -> FloatArray:
        row = view.bundles.measured_row(bundle)
        if row is None:
            return _mean_usage(view)
        if source is None:
            totals, used = view.brokers.traffic.sum(axis=0), view.brokers.usage.sum(axis=0)
        else:
            serving = view.row(source)
            totals, used = view.brokers.traffic[serving], view.brokers.usage[serving]
        rates = view.bundles.short[row]
        msgs = _share(rates[:2].sum(), totals[:2].sum())
        volume = _share(rates[2:].sum(), totals[2:].sum())
        shares = np.zeros(5)
        shares[CPU] = (msgs + volume) / 2.0
        shares[DIRECT_MEMORY] = volume
        shares[BANDWIDTH_IN] = _share(rates[BYTES_IN], totals[BYTES_IN])
        shares[BANDWIDTH_OUT] = _share(rates[BYTES_OUT], totals[BYTES_OUT])
        return np.asarray(shares * used)

    def elsewhere(
        self,
        view: ClusterView,  # noqa: ARG002 - all brokers are assumed to be equally fast
        bundle: BundleId,  # noqa: ARG002
        source: BrokerId | None,  # noqa: ARG002
        usage: FloatArray,
        rows: Indices,
    ) -> FloatArray:
        return np.broadcast_to(usage, (len(rows), len(usage)))


def _mean_usage(view: ClusterView) -> FloatArray:
    usage = view.brokers.usage.sum(axis=0) / max(len(view.owned.rows), 1)
    usage[MEMORY] = 0.0
    return np.asarray(usage)


def _share(part: float, whole: float) -> float:
    # Compare before dividing: division by the smallest numbers overflows.
    if part >= whole:
        return 1.0 if whole > 0 else 0.0
    return float(part / whole)


def settled(view: ClusterView, cost: CostModel) -> ClusterView:
    """Return the view with the load of every bundle under way counted on its target.

    Reports lag behind orders: without this, a broker that is already shedding a third of its
    load would have to shed another third in the next round.
    """
    if not view.moved:
        return view
    brokers = view.brokers
    traffic, used = brokers.traffic.copy(), brokers.usage.copy()
    for bundle, target in view.moved.items():
        gains = view.row(target)
        source = view.listed_owner(bundle)
        rates, usage = view.short_rates(bundle), cost.usage(view, bundle, source)
        traffic[gains] += rates
        used[gains] += cost.elsewhere(view, bundle, source, usage, np.array([gains]))[0]
        if source is not None:
            traffic[view.row(source)] -= rates
            used[view.row(source)] -= usage
    return replace(
        view,
        brokers=brokers.having(traffic=np.maximum(traffic, 0.0), usage=np.maximum(used, 0.0)),
    )


def after_move(view: ClusterView, cost: CostModel, move: Move) -> ClusterView:
    usage = cost.usage(view, move.bundle, move.source)
    rows = np.array([view.row(move.target)])
    gained = cost.elsewhere(view, move.bundle, move.source, usage, rows)[0]
    return view.after(move.bundle, move.source, move.target, usage, gained)


def loads(view: ClusterView, weights: ResourceWeights) -> FloatArray:
    """Return a comparable load per broker: usage, or message rate if usage is unknown.

    If any broker has no known limit for all weighted resources, fractions of capacity are not
    comparable, and message rates relative to the largest are used instead.
    """
    if has_capacities(view, weights):
        return view.scores(weights)
    rates = view.brokers.msgs_per_s
    return rates / max(float(rates.max(initial=0.0)), 1.0)


def loads_with(
    view: ClusterView,
    weights: ResourceWeights,
    rows: Indices,
    usage: FloatArray,
    msgs_per_s: float,
) -> FloatArray:
    """Return the `loads` of ``rows`` if each took a bundle with the given usage and rate.

    ``usage`` is a single row for all brokers, or one row for each.
    """
    brokers = view.brokers
    if has_capacities(view, weights):
        return weighted_max_usage(brokers.usage[rows] + usage, brokers.limit[rows], weights)
    rates = brokers.msgs_per_s
    return (rates[rows] + msgs_per_s) / max(float(rates.max(initial=0.0)), 1.0)


def has_capacities(view: ClusterView, weights: ResourceWeights) -> bool:
    counts = weights.as_array() > 0
    counts[MEMORY] = False
    return bool((view.brokers.limit[:, counts] > 0).any(axis=1).all())
