"""A load report as Pulsar's ``LocalBrokerData``: in snapshots and over HTTP.

CPU is in percent of one core (limit 100 per core), memory in MiB, bandwidth in
kbit/s. A resource that could not be measured is written with limit 0, which is how
Pulsar says that it does not count.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from loadmanager.core.bounds import AMOUNT, LIMIT, SIZE_BYTES, TIME_MS, USAGE
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import BundleId, parse_bundle
from loadmanager.core.load import BundleStats, LoadReport, ResourceUsage, registration_fields
from loadmanager.core.scores import report_max_usage
from loadmanager.core.wire.fields import OURS, Fields
from loadmanager.core.wire.registrations import (
    addresses_to_json,
    registration_from,
    state_to_json,
)

REPORT_TYPE: Final = "LocalBrokerData"

RESOURCES: Final = (
    ("cpu", "cpu"),
    ("memory", "memory"),
    ("directMemory", "direct_memory"),
    ("bandwidthIn", "bandwidth_in"),
    ("bandwidthOut", "bandwidth_out"),
)


def report_to_json(report: LoadReport) -> dict[str, Any]:
    """Return the report as a JSON object."""
    stats = {bundle: _stats_to_json(one) for bundle, one in report.bundles.items()}
    return {
        "loadReportType": REPORT_TYPE,
        "brokerId": report.broker,
        **addresses_to_json(report),
        **{json_name: usage_to_json(getattr(report, ours)) for json_name, ours in RESOURCES},
        **_totals_to_json(report),
        "lastUpdate": report.reported_at_ms,
        "startTimestamp": report.started_at_ms,
        "lastStats": stats,
        "bundleStats": stats,
        "bundles": sorted(report.bundles),
        "lastBundleGains": sorted(report.gains),
        "lastBundleLosses": sorted(report.losses),
        "brokerVersionString": report.version,
        "maxResourceUsage": report_max_usage(report),
        OURS: state_to_json(report),
    }


def report_from(fields: Fields) -> LoadReport:
    """Return the report in a JSON object, also one of a Pulsar broker without our fields.

    Raises:
        MalformedContent: naming the field, what was found and what was expected.
    """
    if fields.text("loadReportType", REPORT_TYPE) != REPORT_TYPE:
        fields.refuse("loadReportType", REPORT_TYPE)
    resources: dict[str, Any] = {ours: usage_from(fields, name) for name, ours in RESOURCES}
    return LoadReport(
        **registration_fields(registration_from(fields, "brokerVersionString")),
        reported_at_ms=fields.count("lastUpdate", bound=TIME_MS),
        bundles=_bundles_from(fields),
        gains=frozenset(_bundle_names(fields, "lastBundleGains")),
        losses=frozenset(_bundle_names(fields, "lastBundleLosses")),
        **resources,
    )


def _totals_to_json(report: LoadReport) -> dict[str, Any]:
    every = report.bundles.values()
    return {
        "msgRateIn": report.msgs_in_per_s,
        "msgRateOut": report.msgs_out_per_s,
        "msgThroughputIn": report.bytes_in_per_s,
        "msgThroughputOut": report.bytes_out_per_s,
        "numTopics": report.topics,
        "numBundles": len(report.bundles),
        "numConsumers": sum(stats.consumers for stats in every),
        "numProducers": sum(stats.producers for stats in every),
    }


def usage_to_json(usage: ResourceUsage | None) -> dict[str, float]:
    """Return one resource; a limit of 0 says that it does not count."""
    if usage is None:
        return {"usage": 0.0, "limit": 0.0}
    return {"usage": usage.usage, "limit": usage.limit}


def _stats_to_json(stats: BundleStats) -> dict[str, float]:
    return {
        "msgRateIn": stats.msgs_in_per_s,
        "msgThroughputIn": stats.bytes_in_per_s,
        "msgRateOut": stats.msgs_out_per_s,
        "msgThroughputOut": stats.bytes_out_per_s,
        "consumerCount": stats.consumers,
        "producerCount": stats.producers,
        "topics": stats.topics,
        "cacheSize": stats.cache_size_bytes,
    }


def usage_from(fields: Fields, name: str) -> ResourceUsage | None:
    """Return one resource of a document, None where its limit says that it does not count."""
    resource = fields.inner(name)
    limit = resource.rate("limit", bound=AMOUNT)
    if limit <= 0:
        resource.rate("usage", bound=AMOUNT)
        return None
    return ResourceUsage(resource.rate("usage", bound=USAGE), resource.rate("limit", bound=LIMIT))


def _bundles_from(fields: Fields) -> Mapping[BundleId, BundleStats]:
    stats = fields.inner("lastStats" if "lastStats" in fields.names() else "bundleStats")
    listed = _bundle_names(fields, "bundles")
    found = {
        bundle: _stats_from(stats.inner(bundle))
        for bundle in _parsed_bundles(fields, "lastStats", stats.names())
    }
    for bundle in listed:
        found.setdefault(bundle, BundleStats())
    return MappingProxyType(found)


def _stats_from(stats: Fields) -> BundleStats:
    return BundleStats(
        msgs_in_per_s=stats.rate("msgRateIn"),
        msgs_out_per_s=stats.rate("msgRateOut"),
        bytes_in_per_s=stats.rate("msgThroughputIn"),
        bytes_out_per_s=stats.rate("msgThroughputOut"),
        topics=stats.count("topics"),
        producers=stats.count("producerCount"),
        consumers=stats.count("consumerCount"),
        cache_size_bytes=stats.count("cacheSize", bound=SIZE_BYTES),
    )


def _bundle_names(fields: Fields, name: str) -> tuple[BundleId, ...]:
    return _parsed_bundles(fields, name, fields.texts(name))


def _parsed_bundles(fields: Fields, name: str, texts: Iterable[str]) -> tuple[BundleId, ...]:
    try:
        return tuple(parse_bundle(text) for text in texts)
    except InvalidName as problem:
        fields.refuse(name, problem.expected)
