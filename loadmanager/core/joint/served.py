from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import BrokerColumns, BundleColumns, Indices
from loadmanager.core.scores import FloatArray

KINDS: Final = ("msgs_in", "msgs_out", "bytes_in", "bytes_out", "topics", "connections")
"""The order of the columns: four rates per second and two numbers."""

RATES: Final = 4
"""The number of `KINDS` that are rates."""

TOPICS, CONNECTIONS = 4, 5


def served_by(brokers: BrokerColumns) -> FloatArray:
    """Return (brokers, `KINDS`): the work of each broker, from its own report."""
    return np.column_stack([brokers.traffic, brokers.topics, brokers.connections])


def served_in(bundles: BundleColumns, rates: FloatArray) -> FloatArray:
    """Return (bundles, `KINDS`): the given ``rates`` and the bundles' topics and connections."""
    return np.column_stack([rates, bundles.topics, bundles.connections])


def owners(view: ClusterView) -> Indices:
    """Return the present or next broker of each bundle row, -1 for none."""
    found = view.owned.listed_by.copy()
    for bundle, target in view.moved.items():
        row = view.bundles.row(bundle)
        if row is not None:
            found[row] = view.brokers.index[target]
    return found


def fractions(usage: FloatArray, limit: FloatArray) -> FloatArray:
    return np.asarray(usage / np.where(limit > 0, limit, np.inf))


def sums_by_broker(owner: Indices, sizes: FloatArray, brokers: int) -> FloatArray:
    """Return (B, R): the sums over each broker's bundles; bundles of owner -1 are ignored."""
    columns = [np.bincount(owner + 1, column, brokers + 1)[1:] for column in sizes.T]
    return np.stack(columns, axis=1) if columns else np.zeros((brokers, 0))
