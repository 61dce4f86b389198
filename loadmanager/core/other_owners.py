"""The cluster as it would be reported with other owners of some bundles."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from loadmanager.core.cluster import ClusterView, TopBundle
from loadmanager.core.columns import BrokerColumns, Indices, Listing, OwnedRows
from loadmanager.core.ids import BrokerId
from loadmanager.core.joint.served import sums_by_broker
from loadmanager.core.optimality import Divided
from loadmanager.core.scores import FloatArray, ResourceWeights, weighted_max_usage
from loadmanager.core.top_k import TopBundles


def with_owners(
    view: ClusterView, divided: Divided, owner: Indices, weights: ResourceWeights
) -> ClusterView:
    """Return the view with other owners: ``owner`` has each bundle's broker row, -1 for none.

    Traffic, usage, topics and connections move with the bundles, with the usage in ``divided``;
    the running averages of brokers change at once by the same amounts. The result has no moves
    under way.
    """
    there = replace(view, moved={}, recently_moved=frozenset())
    changed = np.flatnonzero(owner != divided.owner)
    if not len(changed):
        return there
    brokers = np.union1d(owner[changed], divided.owner[changed])
    owned = _owned(view, owner, brokers[brokers >= 0])
    return replace(
        there,
        brokers=_brokers(view, divided, owner, weights),
        owned=owned,
        top_bundles=_tops(view, owned, brokers[brokers >= 0]),
    )


def _brokers(
    view: ClusterView, divided: Divided, owner: Indices, weights: ResourceWeights
) -> BrokerColumns:
    brokers, bundles, count = view.brokers, view.bundles, len(view.brokers.names)

    def gained(amounts: FloatArray) -> FloatArray:
        """Return (B, N): the difference of each broker's amounts from its report."""
        before = sums_by_broker(divided.owner, amounts, count)
        return np.asarray(sums_by_broker(owner, amounts, count) - before)

    usage, limit = brokers.usage.copy(), brokers.limit
    usage[:, divided.known] = divided.demand(owner) * limit[:, divided.known]
    risen = weighted_max_usage(usage, limit, weights)
    risen -= weighted_max_usage(brokers.usage, limit, weights)
    traffic = np.maximum(brokers.traffic + gained(bundles.short), 0.0)
    bytes_more = (traffic - brokers.traffic)[:, 2:].sum(axis=1)
    things = np.column_stack([bundles.long_msgs_per_s, bundles.topics, bundles.connections])
    long_msgs, topics, connections = gained(things).T
    return brokers.having(
        usage=usage,
        traffic=traffic,
        long_msgs_per_s=np.maximum(brokers.long_msgs_per_s + long_msgs, 0.0),
        topics=np.maximum(brokers.topics + topics.astype(np.int64), 0),
        connections=np.maximum(brokers.connections + connections.astype(np.int64), 0),
        load_ema=np.maximum(brokers.load_ema + risen, 0.0),
        bytes_ema=np.maximum(brokers.bytes_ema + bytes_more, 0.0),
    )


def _owned(view: ClusterView, owner: Indices, changed: Indices) -> OwnedRows:
    position = np.zeros(len(owner), dtype=np.intp)
    position[view.owned.rows] = np.arange(len(view.owned.rows))
    held = np.flatnonzero(owner >= 0)
    rows = held[np.lexsort((position[held], owner[held]))]
    counts = np.bincount(owner[held], minlength=len(view.brokers.names))
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
    names = view.bundles.names
    for broker in changed.tolist():
        part = slice(starts[broker], starts[broker + 1])
        rows[part] = sorted(rows[part].tolist(), key=names.__getitem__)
    return OwnedRows(starts, rows, len(owner))


def _tops(
    view: ClusterView, owned: OwnedRows, changed: Indices
) -> Mapping[BrokerId, tuple[TopBundle, ...]]:
    """Return the heaviest bundles, by short-term averages on brokers with changed bundles."""
    tops, bundles = view.top_bundles, view.bundles
    if not isinstance(tops, TopBundles):
        return {}

    def listing(broker: int) -> Listing:
        rows = owned.of(broker)
        return Listing(
            names=tuple(bundles.names[row] for row in rows.tolist()),
            rates=bundles.short[rows],
            topics=bundles.topics[rows],
            sessions=bundles.connections[rows],
            cache_size_bytes=np.zeros(len(rows), dtype=np.int64),
        )

    return tops.having({view.brokers.names[one]: listing(one) for one in changed.tolist()})
