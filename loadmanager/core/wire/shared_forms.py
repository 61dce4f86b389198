from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final

from loadmanager.core.fields import Fields
from loadmanager.core.ids import BundleId, namespace_of, parse_bundle
from loadmanager.core.load import BrokerUrls
from loadmanager.core.rates import Rates

_LISTENER: Final = ("brokerHttpUrl", "brokerHttpsUrl", "brokerServiceUrl", "brokerServiceUrlTls")


def without_empty(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not an empty text, which Pulsar omits."""
    return {name: value for name, value in document.items() if value != ""}


def urls_to_json(urls: BrokerUrls, names: Sequence[str]) -> dict[str, str]:
    return without_empty(dict(zip(names, astuple(urls), strict=True)))


def urls_from(fields: Fields, names: Sequence[str]) -> BrokerUrls:
    """Return the URLs under ``names``; an absent one is empty."""
    return BrokerUrls(*(fields.text(name, "") for name in names))


def listeners_to_json(listeners: Mapping[str, BrokerUrls]) -> dict[str, dict[str, str]]:
    return {name: urls_to_json(urls, _LISTENER) for name, urls in listeners.items()}


def listeners_from(fields: Fields) -> Mapping[str, BrokerUrls]:
    return MappingProxyType(
        fields.mapped(
            "advertisedListeners", str, lambda one, name: urls_from(one.inner(name), _LISTENER)
        )
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
