from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from loadmanager.core.cluster import TopBundle
from loadmanager.core.columns import BrokerColumns, BundleColumns, Indices, Listing, OwnedRows
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import LoadReport
from loadmanager.core.rates import Rates
from loadmanager.core.scores import FloatArray, report_usage, report_variance

_NAN: Final = float("nan")
_NO_TRAFFIC: Final = Rates()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLoad:
    """The part of a broker's load report that the load tracker retains.

    ``usage``, ``limit`` and ``variance`` (of usage, NaN if not reported) are in the order of
    `scores.RESOURCES`; ``totals`` is the broker's own traffic. ``long_msgs_per_s`` and
    ``preallocated_msgs_per_s`` are computed from the bundles unless given. ``load_ema`` and
    ``bytes_ema`` are kept by the load tracker unless given, and ``top`` (the heaviest bundles,
    ascending) is picked by it.
    """

    broker: BrokerId
    seen_s: float = 0.0
    usage: tuple[float, ...] = (0.0,) * 5
    limit: tuple[float, ...] = (0.0,) * 5
    variance: tuple[float, ...] = (_NAN,) * 5
    totals: Rates = _NO_TRAFFIC
    listing: Listing = field(default_factory=lambda: Listing.of({}))
    draining: bool = False
    persistent: bool = True
    non_persistent: bool = True
    version: str = ""
    started_at_ms: int = 0
    topics: int = 0
    long_msgs_per_s: float | None = None
    preallocated_msgs_per_s: float | None = None
    load_ema: float | None = None
    bytes_ema: float | None = None
    top: tuple[TopBundle, ...] | None = None

    @classmethod
    def of(cls, report: LoadReport, seen_s: float) -> "BrokerLoad":
        usage, limit = report_usage(report)
        return cls(
            broker=report.broker,
            seen_s=seen_s,
            usage=tuple(usage),
            limit=tuple(limit),
            variance=tuple(report_variance(report)),
            totals=report.totals,
            listing=Listing.of(report.bundles),
            draining=report.draining,
            persistent=report.persistent_topics,
            non_persistent=report.non_persistent_topics,
            version=report.version,
            started_at_ms=report.started_at_ms,
            topics=report.topics,
        )


@dataclass(slots=True)
class BrokerEntry:
    load: BrokerLoad
    rows: Indices
    load_ema: float = _NAN
    bytes_ema: float = _NAN


def owned_rows(entries: list[BrokerEntry], bundle_count: int) -> OwnedRows:
    starts = np.zeros(len(entries) + 1, dtype=np.intp)
    np.cumsum([len(entry.rows) for entry in entries], out=starts[1:])
    none = np.zeros(0, dtype=np.intp)
    return OwnedRows(
        starts, np.concatenate([none, *(entry.rows for entry in entries)]), bundle_count
    )


def broker_columns(
    entries: list[BrokerEntry],
    bundles: BundleColumns,
    owned: OwnedRows,
    moved: Mapping[BundleId, BrokerId],
) -> BrokerColumns:
    """Return the brokers as columns; ``moved`` maps bundles under way to their targets."""
    loads = [entry.load for entry in entries]
    names = tuple(load.broker for load in loads)
    count = len(loads)
    arriving = dict.fromkeys(names, 0.0)
    for bundle, target in moved.items():
        row = bundles.row(bundle)
        arriving[target] += 100.0 if row is None else float(bundles.long_msgs_per_s[row])
    long_msgs = np.bincount(
        owned.broker_of_entry, weights=bundles.long_msgs_per_s[owned.rows], minlength=count
    ).astype(np.float64)
    return BrokerColumns(
        names=names,
        usage=np.array([load.usage for load in loads], dtype=np.float64).reshape(count, 5),
        limit=np.array([load.limit for load in loads], dtype=np.float64).reshape(count, 5),
        variance=np.array([load.variance for load in loads], dtype=np.float64).reshape(count, 5),
        traffic=np.array([load.totals.row() for load in loads], dtype=np.float64).reshape(count, 4),
        long_msgs_per_s=_given([load.long_msgs_per_s for load in loads], long_msgs),
        preallocated_msgs_per_s=_given(
            [load.preallocated_msgs_per_s for load in loads], np.array(list(arriving.values()))
        ),
        load_ema=_given(
            [load.load_ema for load in loads], np.array([entry.load_ema for entry in entries])
        ),
        bytes_ema=_given(
            [load.bytes_ema for load in loads], np.array([entry.bytes_ema for entry in entries])
        ),
        seen_s=np.array([load.seen_s for load in loads]),
        topics=np.array([load.topics for load in loads], dtype=np.int64),
        connections=np.array([load.listing.connections for load in loads], dtype=np.int64),
        draining=np.array([load.draining for load in loads], dtype=np.bool_),
        persistent=np.array([load.persistent for load in loads], dtype=np.bool_),
        non_persistent=np.array([load.non_persistent for load in loads], dtype=np.bool_),
        versions=tuple(load.version for load in loads),
        started_at_ms=tuple(load.started_at_ms for load in loads),
    )


def _given(values: list[float | None], otherwise: FloatArray) -> FloatArray:
    for row, value in enumerate(values):
        if value is not None:
            otherwise[row] = value
    return otherwise
