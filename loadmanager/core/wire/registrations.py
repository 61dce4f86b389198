"""Codec of a broker's registration: addresses and state, with Pulsar's field names.

The names are those of Pulsar's ``BrokerLookupData``. Loads are in another node
(`loadmanager.core.wire.reports`), so that a lookup reads no loads to find an address.
"""

from typing import Final

from loadmanager.core.bounds import TIME_MS
from loadmanager.core.errors import InvalidName
from loadmanager.core.fields import OURS, At, Fields, Form
from loadmanager.core.ids import BrokerId, parse_broker
from loadmanager.core.load import Registration
from loadmanager.core.wire.shared_forms import LISTENERS, urls_at


def registration_form(version: str) -> Form[Registration]:
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


_REGISTRATION: Final = registration_form("brokerVersion")
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
