"""A broker's addresses: the four URLs and the named listeners, in Pulsar's forms."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from types import MappingProxyType
from typing import Any, Final

from loadmanager.core.fields import Fields
from loadmanager.core.load import BrokerUrls

_LISTENER: Final = ("brokerHttpUrl", "brokerHttpsUrl", "brokerServiceUrl", "brokerServiceUrlTls")


def without_empty(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not an empty text: Pulsar omits what it has not."""
    return {name: value for name, value in document.items() if value != ""}


def urls_to_json(urls: BrokerUrls, names: Sequence[str]) -> dict[str, str]:
    """Return the URLs that a broker has, under ``names`` in the order of `BrokerUrls`."""
    return without_empty(dict(zip(names, astuple(urls), strict=True)))


def urls_from(fields: Fields, names: Sequence[str]) -> BrokerUrls:
    """Return the URLs under ``names``; an absent one is empty."""
    return BrokerUrls(*(fields.text(name, "") for name in names))


def listeners_to_json(listeners: Mapping[str, BrokerUrls]) -> dict[str, dict[str, str]]:
    """Return Pulsar's ``advertisedListeners``."""
    return {name: urls_to_json(urls, _LISTENER) for name, urls in listeners.items()}


def listeners_from(fields: Fields) -> Mapping[str, BrokerUrls]:
    """Return the named listeners of a document."""
    return MappingProxyType(
        fields.mapped(
            "advertisedListeners", str, lambda one, name: urls_from(one.inner(name), _LISTENER)
        )
    )
