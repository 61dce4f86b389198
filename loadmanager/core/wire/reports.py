"""A load report as Pulsar's ``LocalBrokerData``: the content of a broker's node.

CPU is in percent of one core (limit 100 per core), memory in MiB, bandwidth in
kbit/s. A resource that could not be measured is written with limit 0, which is how
Pulsar says that it does not count.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from loadmanager.core.bounds import AMOUNT, LIMIT, SIZE_BYTES, TIME_MS, USAGE
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import BrokerId, BundleId, parse_broker, parse_bundle
from loadmanager.core.load import BrokerUrls, BundleStats, LoadReport, ResourceUsage
from loadmanager.core.scores import report_max_usage
from loadmanager.core.wire.fields import OURS, Fields, parse_fields, to_json
from loadmanager.core.wire.records import broker_in
from loadmanager.core.wire.urls import listeners_from, listeners_to_json, without_empty

REPORT_TYPE: Final = "LocalBrokerData"

_RESOURCES: Final = (
    ("cpu", "cpu"),
    ("memory", "memory"),
    ("directMemory", "direct_memory"),
    ("bandwidthIn", "bandwidth_in"),
    ("bandwidthOut", "bandwidth_out"),
)


def encode_report(report: LoadReport) -> bytes:
    """Return the content of the broker's node."""
    return to_json(report_to_json(report))


def report_to_json(report: LoadReport) -> dict[str, Any]:
    """Return the content of the broker's node as a JSON object."""
    stats = {bundle: _stats_to_json(one) for bundle, one in report.bundles.items()}
    return {
        "loadReportType": REPORT_TYPE,
        "brokerId": report.broker,
        **_addresses_to_json(report),
        **{json_name: _usage_to_json(getattr(report, ours)) for json_name, ours in _RESOURCES},
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
        OURS: {
            "sidecarUrl": report.sidecar_url,
            "draining": report.draining,
            "healthy": report.healthy,
            **without_empty({"brokerClass": report.broker_class}),
        },
    }


def decode_report(where: str, data: bytes) -> LoadReport:
    """Return the report in a broker's node.

    The node of a broker without a sidecar of ours decodes too: its ``sidecar_url`` is
    empty. Without a ``brokerId`` the web service's address is the id, as in older
    versions of Pulsar.

    Raises:
        MalformedContent: naming the field, what was found and what was expected.
    """
    return report_from(parse_fields(where, data))


def report_from(fields: Fields) -> LoadReport:
    """Return the report in a JSON object; raises as `decode_report`."""
    if fields.text("loadReportType", REPORT_TYPE) != REPORT_TYPE:
        fields.refuse("loadReportType", REPORT_TYPE)
    ours = fields.inner(OURS)
    resources = {ours_name: _usage_from(fields, name) for name, ours_name in _RESOURCES}
    return LoadReport(
        broker=_broker_of(fields),
        urls=_urls_from(fields),
        sidecar_url=ours.text("sidecarUrl", ""),
        reported_at_ms=fields.count("lastUpdate", bound=TIME_MS),
        started_at_ms=fields.count("startTimestamp", bound=TIME_MS),
        version=fields.text("brokerVersionString", ""),
        **resources,
        bundles=_bundles_from(fields),
        gains=frozenset(_bundle_names(fields, "lastBundleGains")),
        losses=frozenset(_bundle_names(fields, "lastBundleLosses")),
        persistent_topics=fields.flag("persistentTopicsEnabled", default=True),
        non_persistent_topics=fields.flag("nonPersistentTopicsEnabled", default=True),
        draining=ours.flag("draining", default=False),
        healthy=ours.flag("healthy", default=True),
        broker_class=ours.text("brokerClass", ""),
        protocols=_protocols_from(fields),
        advertised_listeners=listeners_from(fields),
    )


def _addresses_to_json(report: LoadReport) -> dict[str, Any]:
    urls = without_empty(
        {
            "webServiceUrl": report.urls.http_url,
            "webServiceUrlTls": report.urls.http_url_tls,
            "pulsarServiceUrl": report.urls.broker_url,
            "pulsarServiceUrlTls": report.urls.broker_url_tls,
        }
    )
    return {
        **urls,
        "persistentTopicsEnabled": report.persistent_topics,
        "nonPersistentTopicsEnabled": report.non_persistent_topics,
        "protocols": dict(report.protocols),
        "advertisedListeners": listeners_to_json(report.advertised_listeners),
    }


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


def _usage_to_json(usage: ResourceUsage | None) -> dict[str, float]:
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


def _urls_from(fields: Fields) -> BrokerUrls:
    return BrokerUrls(
        http_url=fields.text("webServiceUrl", ""),
        http_url_tls=fields.text("webServiceUrlTls", ""),
        broker_url=fields.text("pulsarServiceUrl", ""),
        broker_url_tls=fields.text("pulsarServiceUrlTls", ""),
    )


def _broker_of(fields: Fields) -> BrokerId:
    if "brokerId" in fields.names():
        return broker_in(fields, "brokerId")
    address = fields.text("webServiceUrl").partition("://")[2].rstrip("/")
    try:
        return parse_broker(address)
    except InvalidName:
        fields.refuse("webServiceUrl", "http://host:port, as there is no brokerId")


def _usage_from(fields: Fields, name: str) -> ResourceUsage | None:
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


def _protocols_from(fields: Fields) -> Mapping[str, str]:
    protocols = fields.inner("protocols")
    return MappingProxyType({name: protocols.text(name) for name in protocols.names()})
