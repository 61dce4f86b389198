"""Load reports with the largest figures that are allowed, and with none at all."""

from collections.abc import Iterable

from loadmanager.core.bounds import COUNT, LIMIT, RATE, SIZE_BYTES, TIME_MS, USAGE
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BrokerUrls, BundleStats, LoadReport, ResourceUsage

FULL = BundleStats(
    msgs_in_per_s=float(RATE.most),
    msgs_out_per_s=float(RATE.most),
    bytes_in_per_s=float(RATE.most),
    bytes_out_per_s=float(RATE.most),
    topics=int(COUNT.most),
    producers=int(COUNT.most),
    consumers=int(COUNT.most),
    cache_size_bytes=int(SIZE_BYTES.most),
)
MOST_USED = ResourceUsage(float(USAGE.most), float(LIMIT.least))
_UNUSED = ResourceUsage(0.0, float(LIMIT.most))


def largest_report(broker: BrokerId, bundles: Iterable[BundleId]) -> LoadReport:
    return _report(broker, bundles, MOST_USED, FULL)


def idle_report(broker: BrokerId, bundles: Iterable[BundleId]) -> LoadReport:
    """Return the report of a broker as large as can be, with no traffic at all."""
    return _report(broker, bundles, _UNUSED, BundleStats())


def _report(
    broker: BrokerId, bundles: Iterable[BundleId], used: ResourceUsage, stats: BundleStats
) -> LoadReport:
    return LoadReport(
        broker=broker,
        urls=BrokerUrls(http_url="http://x"),
        sidecar_url="http://x",
        reported_at_ms=int(TIME_MS.most),
        started_at_ms=int(TIME_MS.most),
        cpu=used,
        memory=used,
        direct_memory=used,
        bandwidth_in=used,
        bandwidth_out=used,
        bundles=dict.fromkeys(bundles, stats),
    )
