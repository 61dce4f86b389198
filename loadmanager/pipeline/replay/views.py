"""The cluster view of a round of a replay: as recorded, or with other owners."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import BrokerColumns, Indices, Listing, OwnedRows
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.scores import FloatArray
from loadmanager.core.top_k import TopBundles
from loadmanager.pipeline.replay.events import LISTED
from loadmanager.pipeline.replay.frames import Frame
from loadmanager.pipeline.replay.latest_reports import CONNECTIONS, TOPICS

_TOP_K: Final = 10
_PRODUCERS, _CACHE = LISTED.index("producers"), LISTED.index("cache_bytes")


def recorded_view(frame: Frame, *, like_java: bool) -> ClusterView:
    """Return the recorded view; with ``like_java`` bundles are ranked as in Pulsar."""

    def listing(row: int) -> Listing:
        report = frame.reports[row]
        numbers = report.numbers
        return Listing(
            names=tuple(frame.bundles.names[one] for one in report.rows.tolist()),
            rates=numbers[:, :4],
            topics=numbers[:, TOPICS].astype(np.int64),
            sessions=numbers[:, _PRODUCERS:_CACHE].sum(axis=1).astype(np.int64),
            cache_size_bytes=numbers[:, _CACHE].astype(np.int64),
        )

    return _view(frame, frame.brokers, frame.owned, frame.moved, listing, like_java=like_java)


def other_view(
    frame: Frame,
    brokers: BrokerColumns,
    owner: Indices,
    moved: Mapping[BundleId, BrokerId],
    *,
    like_java: bool,
) -> ClusterView:
    """Return the view of the cluster with the bundles on ``owner``.

    ``owner`` has a broker row for each bundle, -1 for none.
    """
    owned = owned_by(frame, owner)

    def listing(row: int) -> Listing:
        rows = owned.of(row)
        rates = frame.rates[rows]
        return Listing(
            names=tuple(frame.bundles.names[one] for one in rows.tolist()),
            rates=rates[:, :4],
            topics=rates[:, TOPICS].astype(np.int64),
            sessions=rates[:, CONNECTIONS].astype(np.int64),
            cache_size_bytes=frame.cache_bytes[rows].astype(np.int64),
        )

    return _view(frame, brokers, owned, moved, listing, like_java=like_java)


def owned_by(frame: Frame, owner: Indices) -> OwnedRows:
    rows = frame.by_name[owner[frame.by_name] >= 0]
    by_broker = rows[np.argsort(owner[rows], kind="stable")]
    counts = np.bincount(owner[rows], minlength=len(frame.brokers.names))
    starts = np.zeros(len(counts) + 1, dtype=np.intp)
    np.cumsum(counts, out=starts[1:])
    return OwnedRows(starts, by_broker, len(owner))


def summed(owner: Indices, values: FloatArray, brokers: int) -> FloatArray:
    """Return the sums of the values of bundles by broker, without unowned bundles."""
    held = owner >= 0
    rows, kept = owner[held], values[held]
    if kept.ndim == 1:
        return np.bincount(rows, weights=kept, minlength=brokers).astype(np.float64)
    columns = [np.bincount(rows, weights=one, minlength=brokers) for one in kept.T]
    return np.stack(columns, axis=1).astype(np.float64)


def _view(
    frame: Frame,
    brokers: BrokerColumns,
    owned: OwnedRows,
    moved: Mapping[BundleId, BrokerId],
    listing: Callable[[int], Listing],
    *,
    like_java: bool,
) -> ClusterView:
    listings = {name: partial(listing, row) for name, row in brokers.index.items()}
    return ClusterView(
        now_s=frame.at_s,
        brokers=brokers,
        bundles=frame.bundles,
        owned=owned,
        moved=moved,
        top_bundles=TopBundles(listings, _TOP_K, like_java=like_java),
        policies=frame.policies,
        membership_changed_s=frame.membership_changed_s,
        departures_s=frame.departures_s,
    )
