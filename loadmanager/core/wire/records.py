"""The ownership lock and the leader's node."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from loadmanager.core.bounds import EPOCH
from loadmanager.core.fields import OURS, parse_fields, to_json
from loadmanager.core.ids import BrokerId, parse_broker
from loadmanager.core.load import BrokerUrls
from loadmanager.core.wire.urls import listeners_from, listeners_to_json, urls_from, urls_to_json

_URLS: Final = ("httpUrl", "httpUrlTls", "nativeUrl", "nativeUrlTls")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRecord:
    """What an ownership lock says: Pulsar's ``NamespaceEphemeralData`` and who wrote it.

    ``broker`` is None and ``epoch`` 0 in a lock that a Pulsar broker wrote itself.
    ``epoch`` is that of the leader whose order was obeyed. A ``disabled`` bundle is
    being unloaded.
    """

    urls: BrokerUrls
    broker: BrokerId | None = None
    epoch: int = 0
    disabled: bool = False
    listeners: Mapping[str, BrokerUrls] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRecord:
    """What the election node says.

    ``instance`` is unique to one candidacy: two processes with the same broker id are
    still told apart. It is empty, and the epoch 0, in a node that Pulsar wrote.
    """

    broker: BrokerId
    service_url: str
    sidecar_url: str = ""
    instance: str = ""
    epoch: int = 0


def encode_lock(lock: LockRecord) -> bytes:
    """Return the content of an ownership lock."""
    document: dict[str, Any] = urls_to_json(lock.urls, _URLS)
    document["disabled"] = lock.disabled
    document["advertisedListeners"] = listeners_to_json(lock.listeners)
    if lock.broker is not None:
        document[OURS] = {"brokerId": lock.broker, "epoch": lock.epoch}
    return to_json(document)


def decode_lock(where: str, data: bytes) -> LockRecord:
    """Return what an ownership lock says."""
    fields = parse_fields(where, data)
    ours = fields.inner(OURS)
    named = "brokerId" in ours.names()
    urls = urls_from(fields, _URLS)
    if urls == BrokerUrls(http_url=""):
        fields.refuse("nativeUrl", "at least one of nativeUrl, nativeUrlTls, httpUrl, httpUrlTls")
    return LockRecord(
        urls=urls,
        broker=ours.parsed("brokerId", parse_broker) if named else None,
        epoch=ours.count("epoch", bound=EPOCH),
        disabled=fields.flag("disabled", default=False),
        listeners=listeners_from(fields),
    )


def encode_leader(leader: LeaderRecord) -> bytes:
    """Return the content of the election node."""
    return to_json(
        {
            "brokerId": leader.broker,
            "serviceUrl": leader.service_url,
            OURS: {
                "sidecarUrl": leader.sidecar_url,
                "instanceId": leader.instance,
                "epoch": leader.epoch,
            },
        }
    )


def decode_leader(where: str, data: bytes) -> LeaderRecord:
    """Return what the election node says."""
    fields = parse_fields(where, data)
    ours = fields.inner(OURS)
    return LeaderRecord(
        broker=fields.parsed("brokerId", parse_broker),
        service_url=fields.text("serviceUrl"),
        sidecar_url=ours.text("sidecarUrl", ""),
        instance=ours.text("instanceId", ""),
        epoch=ours.count("epoch", bound=EPOCH),
    )
