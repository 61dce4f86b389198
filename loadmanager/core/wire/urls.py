"""A broker's addresses: the four URLs and the named listeners, in Pulsar's forms."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from loadmanager.core.fields import Fields
from loadmanager.core.load import BrokerUrls


def without_empty(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not an empty text: Pulsar omits what it has not."""
    return {name: value for name, value in document.items() if value != ""}


def listeners_to_json(listeners: Mapping[str, BrokerUrls]) -> dict[str, dict[str, str]]:
    """Return Pulsar's ``advertisedListeners``."""
    return {
        name: without_empty(
            {
                "brokerServiceUrl": urls.broker_url,
                "brokerServiceUrlTls": urls.broker_url_tls,
                "brokerHttpUrl": urls.http_url,
                "brokerHttpsUrl": urls.http_url_tls,
            }
        )
        for name, urls in listeners.items()
    }


def listeners_from(fields: Fields) -> Mapping[str, BrokerUrls]:
    """Return the named listeners of a document."""
    listeners = fields.inner("advertisedListeners")
    found: dict[str, BrokerUrls] = {}
    for name in listeners.names():
        listener = listeners.inner(name)
        found[name] = BrokerUrls(
            http_url=listener.text("brokerHttpUrl", ""),
            http_url_tls=listener.text("brokerHttpsUrl", ""),
            broker_url=listener.text("brokerServiceUrl", ""),
            broker_url_tls=listener.text("brokerServiceUrlTls", ""),
        )
    return MappingProxyType(found)
