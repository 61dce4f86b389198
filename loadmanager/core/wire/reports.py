"""Codecs of a broker's registration, and of the two forms of its load report.

A registration has the names of Pulsar's ``BrokerLookupData``. Loads are in another node, so that a
lookup reads no loads to find an address.

Pulsar's ``LocalBrokerData`` is in snapshots and over HTTP. CPU is in percent of one core
(limit 100 per core), memory in MiB, bandwidth in kbit/s. A resource that could not be
measured is written with limit 0, which is how Pulsar says that it does not count.

The node ``/loadbalance/loads/{broker}`` has the loads without the registration, as compressed
JSON with one column for each figure of the bundles, whose names are written once, grouped by
namespace. Rates have the six digits of the report, so that the leader decides on the same
figures as recorded in history. A broker with 20,000 bundles needs at most two thirds of the
megabyte that ZooKeeper accepts. Unknown fields are ignored: at the top, in a resource, and as
further columns. A resource may have the ``mean`` and ``variance`` of the last samples beside
``usage`` and ``limit``. A change that a reader of this version would misread needs another
``version``.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from loadmanager.core.bounds import AMOUNT, COUNT, LIMIT, SIZE_BYTES, TIME_MS, USAGE, VARIANCE
from loadmanager.core.errors import InvalidName
from loadmanager.core.fields import OURS, At, Fields, Form, packed, to_json, unpacked_object
from loadmanager.core.ids import BrokerId, BundleId, parse_broker, parse_bundle
from loadmanager.core.load import (
    BundleStats,
    LoadReport,
    Registration,
    ResourceUsage,
    registration_fields,
)
from loadmanager.core.scores import report_max_usage
from loadmanager.core.wire.shared_forms import (
    LISTENERS,
    RATES,
    bundles_from,
    ranges_of,
    rates_from,
    rates_to_json,
    urls_at,
)

REPORT_TYPE: Final = "LocalBrokerData"

VERSION: Final = 1
_VERSION: Final = "brokerVersionString"
LARGEST_UNPACKED_BYTES: Final = 4 * 1024 * 1024

_RESOURCES: Final = (
    ("cpu", "cpu"),
    ("memory", "memory"),
    ("directMemory", "direct_memory"),
    ("bandwidthIn", "bandwidth_in"),
    ("bandwidthOut", "bandwidth_out"),
)
_COUNTS: Final = (
    ("topics", "topics", COUNT),
    ("producerCount", "producers", COUNT),
    ("consumerCount", "consumers", COUNT),
    ("cacheSize", "cache_size_bytes", SIZE_BYTES),
)
_STATS: Final = (*RATES, *((name, ours) for name, ours, _bound in _COUNTS))


def _registration(version: str) -> Form[Registration]:
    """``version`` is the name of the broker's version."""
    return Form(
        Registration,
        broker=At(name="brokerId", read=lambda fields, _: _broker_of(fields)),
        urls=urls_at(
            "webServiceUrl", "webServiceUrlTls", "pulsarServiceUrl", "pulsarServiceUrlTls"
        ),
        persistent_topics=At(name="persistentTopicsEnabled"),
        non_persistent_topics=At(name="nonPersistentTopicsEnabled"),
        advertised_listeners=LISTENERS,
        started_at_ms=At(name="startTimestamp", bound=TIME_MS, absent=0),
        version=At(name=version),
        sidecar_url=At(inside=OURS, absent=""),
        draining=At(inside=OURS),
        healthy=At(inside=OURS),
        broker_class=At(inside=OURS, omitted=""),
    )


_REGISTRATION: Final = _registration("brokerVersion")
encode_registration = _REGISTRATION.encode
decode_registration = _REGISTRATION.decode
"""Return the registration in the content of a broker's node.

For a broker without a sidecar, ``sidecar_url`` is empty. Without a ``brokerId`` the address of the
web service is the id, as in older versions of Pulsar.
"""


def _broker_of(fields: Fields) -> BrokerId:
    if "brokerId" in fields.names():
        return fields.parsed("brokerId", parse_broker)
    address = fields.text("webServiceUrl").partition("://")[2].rstrip("/")
    try:
        return parse_broker(address)
    except InvalidName:
        fields.refuse("webServiceUrl", "http://host:port, as there is no brokerId")


_REPORTED: Final = _registration(_VERSION)


def report_to_json(report: LoadReport) -> dict[str, Any]:
    stats = {
        bundle: {name: getattr(one, ours) for name, ours in _STATS}
        for bundle, one in report.bundles.items()
    }
    registration = _REPORTED.to_json(report)
    last = {name: registration.pop(name) for name in ("startTimestamp", _VERSION, OURS)}
    return {
        "loadReportType": REPORT_TYPE,
        **registration,
        **_resources_to_json(report),
        **_totals_to_json(report),
        "lastUpdate": report.reported_at_ms,
        "startTimestamp": last["startTimestamp"],
        "lastStats": stats,
        "bundleStats": stats,
        "bundles": sorted(report.bundles),
        "lastBundleGains": sorted(report.gains),
        "lastBundleLosses": sorted(report.losses),
        _VERSION: last[_VERSION],
        "maxResourceUsage": report_max_usage(report),
        OURS: last[OURS],
    }


def report_from(fields: Fields) -> LoadReport:
    """Return the report in a JSON object, also one of a Pulsar broker without our fields."""
    if fields.text("loadReportType", REPORT_TYPE) != REPORT_TYPE:
        fields.refuse("loadReportType", REPORT_TYPE)
    return LoadReport(
        **registration_fields(_REPORTED.read(fields)),
        reported_at_ms=fields.count("lastUpdate", bound=TIME_MS),
        bundles=_bundles_from(fields),
        gains=frozenset(fields.parsed_texts("lastBundleGains", parse_bundle)),
        losses=frozenset(fields.parsed_texts("lastBundleLosses", parse_bundle)),
        **_resources_from(fields),
    )


def encode_loads(report: LoadReport) -> bytes:
    """Return the content of ``/loadbalance/loads/{broker}``; the registration is not in it."""
    names = sorted(report.bundles)
    stats = [report.bundles[name] for name in names]
    return packed(
        to_json(
            {
                "version": VERSION,
                "lastUpdate": report.reported_at_ms,
                **_resources_to_json(report),
                "bundles": ranges_of(names),
                **{name: [getattr(one, ours) for one in stats] for name, ours in _STATS},
                "lastBundleGains": ranges_of(sorted(report.gains)),
                "lastBundleLosses": ranges_of(sorted(report.losses)),
            }
        )
    )


def decode_loads(where: str, data: bytes, registration: Registration) -> LoadReport:
    """Raises `MalformedContent`: also where the content would be too large unpacked."""
    fields = Fields(where, unpacked_object(where, data, LARGEST_UNPACKED_BYTES))
    if fields.count("version", None) != VERSION:
        fields.refuse("version", f"{VERSION}, the version this program reads")
    return LoadReport(
        **registration_fields(registration),
        reported_at_ms=fields.count("lastUpdate", bound=TIME_MS),
        bundles=_columns_from(fields),
        gains=frozenset(bundles_from(fields, "lastBundleGains")),
        losses=frozenset(bundles_from(fields, "lastBundleLosses")),
        **_resources_from(fields),
    )


def _totals_to_json(report: LoadReport) -> dict[str, Any]:
    every = report.bundles.values()
    return {
        **rates_to_json(report.totals),
        "numTopics": report.topics,
        "numBundles": len(report.bundles),
        "numConsumers": sum(stats.consumers for stats in every),
        "numProducers": sum(stats.producers for stats in every),
    }


_USAGE: Final = Form(
    ResourceUsage,
    usage=At(bound=USAGE),
    limit=At(bound=LIMIT),
    mean=At(bound=USAGE, omitted=None),
    variance=At(bound=VARIANCE, omitted=None),
)


def _resources_to_json(report: LoadReport) -> dict[str, dict[str, float]]:
    none = ResourceUsage(0.0, 0.0)
    return {name: _USAGE.to_json(getattr(report, ours) or none) for name, ours in _RESOURCES}


def _resources_from(fields: Fields) -> dict[str, Any]:
    return {ours: _usage_from(fields.inner(name)) for name, ours in _RESOURCES}


def _usage_from(resource: Fields) -> ResourceUsage | None:
    if resource.rate("limit", bound=AMOUNT) <= 0:
        resource.rate("usage", bound=AMOUNT)
        return None
    return _USAGE.read(resource)


def _bundles_from(fields: Fields) -> Mapping[BundleId, BundleStats]:
    name = "lastStats" if "lastStats" in fields.names() else "bundleStats"
    unlisted = dict.fromkeys(fields.parsed_texts("bundles", parse_bundle), BundleStats())
    return MappingProxyType({**unlisted, **fields.mapped(name, parse_bundle, _stats_from)})


def _stats_from(every: Fields, bundle: str) -> BundleStats:
    stats = every.inner(bundle)
    counts = (stats.count(name, bound=bound) for name, _, bound in _COUNTS)
    return BundleStats(*rates_from(stats).row(), *counts)


def _columns_from(fields: Fields) -> Mapping[BundleId, BundleStats]:
    names = bundles_from(fields, "bundles")
    rates = [fields.rates(name, len(names)) for name, _ in RATES]
    counts = [fields.counts(name, len(names), bound=most) for name, _, most in _COUNTS]
    return MappingProxyType(dict(zip(names, map(BundleStats, *rates, *counts), strict=True)))
