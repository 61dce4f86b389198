from dataclasses import replace

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.plan import Move
from loadmanager.core.scores import MEMORY, FloatArray, ResourceWeights, weighted_max_usage
from loadmanager.core.traffic_share import CostModel


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
