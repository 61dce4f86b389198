"""Codec of a broker's registration: addresses and state, with Pulsar's field names.

The names are those of Pulsar's ``BrokerLookupData``. Loads are in another node
(`loadmanager.core.wire.reports`), so that a lookup reads no loads to find an address.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from loadmanager.core.bounds import TIME_MS
from loadmanager.core.errors import InvalidName
from loadmanager.core.fields import OURS, Fields, parse_fields, to_json
from loadmanager.core.ids import BrokerId, parse_broker
from loadmanager.core.load import Registration
from loadmanager.core.wire.shared_forms import (
    listeners_from,
    listeners_to_json,
    urls_from,
    urls_to_json,
    without_empty,
)

_URLS: Final = ("webServiceUrl", "webServiceUrlTls", "pulsarServiceUrl", "pulsarServiceUrlTls")


def encode_registration(registration: Registration) -> bytes:
    return to_json(
        {
            "brokerId": registration.broker,
            **addresses_to_json(registration),
            "startTimestamp": registration.started_at_ms,
            "brokerVersion": registration.version,
            OURS: state_to_json(registration),
        }
    )


def decode_registration(where: str, data: bytes) -> Registration:
    """Return the registration in the content of a broker's node.

    For a broker without a sidecar, ``sidecar_url`` is empty. Without a ``brokerId`` the address
    of the web service is the id, as in older versions of Pulsar.
    """
    return registration_from(parse_fields(where, data), "brokerVersion")


def registration_from(fields: Fields, version_name: str) -> Registration:
    ours = fields.inner(OURS)
    return Registration(
        broker=_broker_of(fields),
        urls=urls_from(fields, _URLS),
        sidecar_url=ours.text("sidecarUrl", ""),
        started_at_ms=fields.count("startTimestamp", bound=TIME_MS),
        version=fields.text(version_name, ""),
        persistent_topics=fields.flag("persistentTopicsEnabled", default=True),
        non_persistent_topics=fields.flag("nonPersistentTopicsEnabled", default=True),
        draining=ours.flag("draining", default=False),
        healthy=ours.flag("healthy", default=True),
        broker_class=ours.text("brokerClass", ""),
        protocols=_protocols_from(fields),
        advertised_listeners=listeners_from(fields),
    )


def addresses_to_json(registration: Registration) -> dict[str, Any]:
    return {
        **urls_to_json(registration.urls, _URLS),
        "persistentTopicsEnabled": registration.persistent_topics,
        "nonPersistentTopicsEnabled": registration.non_persistent_topics,
        "protocols": dict(registration.protocols),
        "advertisedListeners": listeners_to_json(registration.advertised_listeners),
    }


def state_to_json(registration: Registration) -> dict[str, Any]:
    return {
        "sidecarUrl": registration.sidecar_url,
        "draining": registration.draining,
        "healthy": registration.healthy,
        **without_empty({"brokerClass": registration.broker_class}),
    }


def _broker_of(fields: Fields) -> BrokerId:
    if "brokerId" in fields.names():
        return fields.parsed("brokerId", parse_broker)
    address = fields.text("webServiceUrl").partition("://")[2].rstrip("/")
    try:
        return parse_broker(address)
    except InvalidName:
        fields.refuse("webServiceUrl", "http://host:port, as there is no brokerId")


def _protocols_from(fields: Fields) -> Mapping[str, str]:
    return MappingProxyType(fields.mapped("protocols", str, Fields.text))
