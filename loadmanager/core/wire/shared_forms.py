from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from itertools import groupby
from types import MappingProxyType
from typing import Final

from loadmanager.core.fields import SPREAD, At, Fields
from loadmanager.core.ids import BundleId, namespace_of, parse_bundle
from loadmanager.core.load import BrokerUrls
from loadmanager.core.rates import Rates

_LISTENER: Final = ("brokerHttpUrl", "brokerHttpsUrl", "brokerServiceUrl", "brokerServiceUrlTls")


def urls_at(*names: str) -> At:
    """Return that URLs are written under ``names`` among the others; an absent one is empty."""
    return At(
        name=SPREAD,
        read=lambda fields, _: urls_from(fields, names),
        write=lambda urls: urls_to_json(urls, names),
    )


def urls_to_json(urls: BrokerUrls, names: Sequence[str]) -> dict[str, str]:
    written = zip(names, astuple(urls), strict=True)
    return {name: url for name, url in written if url}  # Pulsar omits empty ones.


def urls_from(fields: Fields, names: Sequence[str]) -> BrokerUrls:
    return BrokerUrls(*(fields.text(name, "") for name in names))


LISTENERS: Final = At(
    name="advertisedListeners",
    read=lambda fields, name: MappingProxyType(
        fields.mapped(name, str, lambda one, key: urls_from(one.inner(key), _LISTENER))
    ),
    write=lambda every: {name: urls_to_json(urls, _LISTENER) for name, urls in every.items()},
)


RATES: Final = (
    ("msgRateIn", "msgs_in_per_s"),
    ("msgRateOut", "msgs_out_per_s"),
    ("msgThroughputIn", "bytes_in_per_s"),
    ("msgThroughputOut", "bytes_out_per_s"),
)


def rates_to_json(rates: Rates) -> dict[str, float]:
    return {name: getattr(rates, ours) for name, ours in RATES}


def rates_from(fields: Fields) -> Rates:
    return Rates(*(fields.rate(name) for name, _ in RATES))


def by_namespace(bundles: Iterable[BundleId]) -> Iterator[tuple[str, list[BundleId]]]:
    for namespace, group in groupby(sorted(bundles), key=namespace_of):
        yield namespace, list(group)


def ranges_of(bundles: Iterable[BundleId]) -> dict[str, list[str]]:
    return {
        namespace: [range_text(bundle) for bundle in group]
        for namespace, group in by_namespace(bundles)
    }


def range_text(bundle: BundleId) -> str:
    return bundle.rpartition("/")[2]


def bundles_from(fields: Fields, name: str) -> tuple[BundleId, ...]:
    """Return the bundles in a field that `ranges_of` made, in its order; an absent one is empty."""
    ranges = fields.inner(name)
    names = [
        f"{namespace}/{text}" for namespace in ranges.names() for text in ranges.texts(namespace)
    ]
    return tuple(ranges.keys(names, parse_bundle))
