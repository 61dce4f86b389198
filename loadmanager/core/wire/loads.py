"""What a broker carries: the content of ``/loadbalance/loads/{broker}``.

Compressed JSON with one column for each figure of the bundles, which are named once,
grouped by namespace. Rates are written as the report gives them, with six digits, so
that the leader decides by the same figures that the history has. So a broker with
20,000 bundles needs at most two thirds of the megabyte that ZooKeeper accepts. Unknown
fields are ignored, at the top, in a resource and as further columns: a resource may have
a ``mean`` and a ``variance`` beside ``usage`` and ``limit``, which this version does not
read. A change that a reader of this version would misunderstand needs another ``version``.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from loadmanager.core.bounds import COUNT, SIZE_BYTES, TIME_MS
from loadmanager.core.ids import BundleId
from loadmanager.core.load import BundleStats, LoadReport, Registration, registration_fields
from loadmanager.core.wire.bundle_names import bundles_from, ranges_of
from loadmanager.core.wire.fields import Fields, to_json
from loadmanager.core.wire.packing import packed, unpacked_object
from loadmanager.core.wire.reports import RESOURCES, usage_from, usage_to_json

VERSION: Final = 1
LARGEST_UNPACKED_BYTES: Final = 4 * 1024 * 1024

_RATES: Final = (
    ("msgRateIn", "msgs_in_per_s"),
    ("msgRateOut", "msgs_out_per_s"),
    ("msgThroughputIn", "bytes_in_per_s"),
    ("msgThroughputOut", "bytes_out_per_s"),
)
_COUNTS: Final = (
    ("topics", "topics", COUNT),
    ("producerCount", "producers", COUNT),
    ("consumerCount", "consumers", COUNT),
    ("cacheSize", "cache_size_bytes", SIZE_BYTES),
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
                **{name: usage_to_json(getattr(report, ours)) for name, ours in RESOURCES},
                "bundles": ranges_of(names),
                **{name: [getattr(one, ours) for one in stats] for name, ours in _RATES},
                **{name: [getattr(one, ours) for one in stats] for name, ours, _bound in _COUNTS},
                "lastBundleGains": ranges_of(sorted(report.gains)),
                "lastBundleLosses": ranges_of(sorted(report.losses)),
            }
        )
    )


def decode_loads(where: str, data: bytes, registration: Registration) -> LoadReport:
    """Return the report of the broker with this registration, with the loads in ``data``.

    Raises:
        MalformedContent: naming the field, what was found and what was expected; also
            where the content would be too large unpacked.
    """
    fields = Fields(where, unpacked_object(where, data, LARGEST_UNPACKED_BYTES))
    if fields.count("version", None) != VERSION:
        fields.refuse("version", f"{VERSION}, the version this program reads")
    resources: dict[str, Any] = {ours: usage_from(fields, name) for name, ours in RESOURCES}
    return LoadReport(
        **registration_fields(registration),
        reported_at_ms=fields.count("lastUpdate", bound=TIME_MS),
        bundles=_bundles_from(fields),
        gains=frozenset(bundles_from(fields, "lastBundleGains")),
        losses=frozenset(bundles_from(fields, "lastBundleLosses")),
        **resources,
    )


def _bundles_from(fields: Fields) -> Mapping[BundleId, BundleStats]:
    names = bundles_from(fields, "bundles")
    columns = {ours: fields.rates(name, len(names)) for name, ours in _RATES}
    counts = {ours: fields.counts(name, len(names), bound=bound) for name, ours, bound in _COUNTS}
    rows = zip(*columns.values(), *counts.values(), strict=True)
    keys = (*columns, *counts)
    found = {
        name: BundleStats(**dict(zip(keys, row, strict=True)))
        for name, row in zip(names, rows, strict=True)
    }
    return MappingProxyType(found)
