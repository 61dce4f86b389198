"""A published load report in columns, converted to an object on demand."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.broker_table import BrokerLoad
from loadmanager.core.columns import Indices, Listing
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BrokerUrls, LoadReport, ResourceUsage
from loadmanager.core.rates import Rates
from loadmanager.core.scores import FloatArray
from loadmanager.simulator.listings import ListedStats


@dataclass(frozen=True, eq=False, kw_only=True)
class Reported:
    """A load report that an agent wrote at ``at_s``, and the leader saw at ``seen_s``.

    ``row`` is the row of the broker, ``rows`` are those of the bundles in order of names.
    ``totals`` are the rates of the broker. ``former`` are the bundles of the previous report.
    ``usage`` and ``limit`` are in the order of `core.scores.RESOURCES`, and so are ``mean`` and
    ``variance`` of the last samples, NaN with fewer than two.
    """

    broker: BrokerId
    row: int
    rows: Indices
    at_s: float
    seen_s: float
    usage: FloatArray
    limit: FloatArray
    mean: FloatArray
    variance: FloatArray
    totals: FloatArray
    listing: Listing
    producers: NDArray[np.int64]
    former: tuple[BundleId, ...]
    draining: bool
    started_at_ms: int

    def load(self) -> BrokerLoad:
        return BrokerLoad(
            broker=self.broker,
            seen_s=self.seen_s,
            usage=tuple(self.usage.tolist()),
            limit=tuple(self.limit.tolist()),
            variance=tuple(self.variance.tolist()),
            totals=Rates(*self.totals.tolist()),
            listing=self.listing,
            draining=self.draining,
            started_at_ms=self.started_at_ms,
            topics=int(self.listing.topics.sum()),
        )

    def report(self) -> LoadReport:
        """Return the report as written by an agent; its clock begins at 0."""
        columns = (self.usage, self.limit, self.mean, self.variance)
        cpu, memory, direct_memory, bandwidth_in, bandwidth_out = (
            None if limit <= 0 and used == 0 else _used(used, limit, mean, variance)
            for used, limit, mean, variance in zip(*(c.tolist() for c in columns), strict=True)
        )
        now, then = frozenset(self.listing.names), frozenset(self.former)
        return LoadReport(
            broker=self.broker,
            urls=BrokerUrls(http_url=f"http://{self.broker}"),
            sidecar_url=f"http://{self.broker}",
            reported_at_ms=round(self.at_s * 1000),
            started_at_ms=self.started_at_ms,
            cpu=cpu,
            memory=memory,
            direct_memory=direct_memory,
            bandwidth_in=bandwidth_in,
            bandwidth_out=bandwidth_out,
            bundles=ListedStats(self.listing, self.producers),
            gains=now - then,
            losses=then - now,
            draining=self.draining,
        )


def _used(usage: float, limit: float, mean: float, variance: float) -> ResourceUsage:
    if math.isnan(mean):
        return ResourceUsage(usage, limit)
    return ResourceUsage(usage, limit, mean, variance)


@dataclass(frozen=True, slots=True)
class Gone:
    """The end of the registration of a broker, seen by the leader at ``seen_s``."""

    broker: BrokerId
    row: int
    seen_s: float
