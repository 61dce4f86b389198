"""Which bundles of a broker are the heaviest: those that TransferShedder may move."""

import math
from collections.abc import Callable, Mapping

from loadmanager.core.cluster import TopBundle
from loadmanager.core.ids import BundleId, Namespace, belongs_to_a_broker, namespace_of
from loadmanager.core.load import BundleStats

_SYSTEM_NAMESPACE = Namespace("pulsar/system")


def top_bundles(
    bundles: Mapping[BundleId, BundleStats],
    count: int,
    *,
    left_out: Callable[[Namespace], bool] = lambda _: False,
    like_java: bool = False,
) -> tuple[TopBundle, ...]:
    """Return the ``count`` heaviest bundles by throughput, ascending.

    Bundles without throughput, of the system or of a namespace that ``left_out`` names
    never count. Ties go by message rate, then by name.

    Pulsar's accident `inbound-first`: inbound throughput is compared first, in steps of
    100 kB/s, then outbound, then the message rate in steps of 100, then sessions and
    topics, then the cache. A bundle with little in and much out ranks low, and where
    there are many bundles it is never among those that may move.
    """
    weight = _weight_like_java if like_java else _weight
    weighed = [
        (weight(stats), bundle)
        for bundle, stats in bundles.items()
        if stats.bytes_per_s != 0 and not _is_system(bundle) and not left_out(namespace_of(bundle))
    ]
    weighed.sort()
    heaviest = weighed[-count:] if count > 0 else []
    return tuple(TopBundle(bundle, bundles[bundle].bytes_per_s) for _, bundle in heaviest)


def _weight(stats: BundleStats) -> tuple[float, ...]:
    return (stats.bytes_per_s, stats.msgs_per_s)


def _weight_like_java(stats: BundleStats) -> tuple[float, ...]:
    return (
        _rounded(stats.bytes_in_per_s / 1e5),
        _rounded(stats.bytes_out_per_s / 1e5),
        _rounded(stats.msgs_per_s / 100.0),
        (stats.topics + stats.consumers + stats.producers) // 500,
        stats.cache_size_bytes // 100_000,
    )


def _rounded(value: float) -> int:
    return math.floor(value + 0.5)


def _is_system(bundle: BundleId) -> bool:
    return bundle.startswith(f"{_SYSTEM_NAMESPACE}/") or belongs_to_a_broker(bundle)
