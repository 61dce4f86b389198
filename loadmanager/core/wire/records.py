from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from loadmanager.core.balancing import Balancing, BalancingMode
from loadmanager.core.bounds import EPOCH, PARTITIONS, TIME_MS
from loadmanager.core.fields import OURS, parse_fields, to_json
from loadmanager.core.ids import BrokerId, parse_broker
from loadmanager.core.load import BrokerUrls
from loadmanager.core.wire.shared_forms import (
    listeners_from,
    listeners_to_json,
    urls_from,
    urls_to_json,
)

_URLS: Final = ("httpUrl", "httpUrlTls", "nativeUrl", "nativeUrlTls")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRecord:
    """Content of an ownership lock: Pulsar's ``NamespaceEphemeralData``, with its writer.

    ``broker`` is None and ``epoch`` 0 in a lock that a Pulsar broker wrote itself.
    ``epoch`` is that of the leader whose order was carried out. A ``disabled`` bundle is
    being unloaded.
    """

    urls: BrokerUrls
    broker: BrokerId | None = None
    epoch: int = 0
    disabled: bool = False
    listeners: Mapping[str, BrokerUrls] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRecord:
    """Content of the election node.

    ``instance`` is unique to one candidacy, and distinguishes two processes with the same broker
    id. It is empty, and the epoch 0, in a node that Pulsar wrote.
    """

    broker: BrokerId
    service_url: str
    sidecar_url: str = ""
    instance: str = ""
    epoch: int = 0


def encode_lock(lock: LockRecord) -> bytes:
    document: dict[str, Any] = urls_to_json(lock.urls, _URLS)
    document["disabled"] = lock.disabled
    document["advertisedListeners"] = listeners_to_json(lock.listeners)
    if lock.broker is not None:
        document[OURS] = {"brokerId": lock.broker, "epoch": lock.epoch}
    return to_json(document)


def decode_lock(where: str, data: bytes) -> LockRecord:
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
    fields = parse_fields(where, data)
    ours = fields.inner(OURS)
    return LeaderRecord(
        broker=fields.parsed("brokerId", parse_broker),
        service_url=fields.text("serviceUrl"),
        sidecar_url=ours.text("sidecarUrl", ""),
        instance=ours.text("instanceId", ""),
        epoch=ours.count("epoch", bound=EPOCH),
    )


def encode_partitions(partitions: int) -> bytes:
    return to_json({"partitions": partitions})


def decode_partitions(where: str, data: bytes) -> int:
    """Raises `MalformedContent`: there is no whole number of partitions within its bound."""
    return parse_fields(where, data).count("partitions", bound=PARTITIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainMark:
    """When, by whom and why a broker was marked as draining; for display.

    ``since_ms`` is the wall clock of the sidecar that wrote the mark.
    """

    since_ms: int = 0
    by: str = ""
    reason: str = ""


def encode_drain_mark(mark: DrainMark) -> bytes:
    return to_json({"sinceMs": mark.since_ms, "by": mark.by, "reason": mark.reason})


def decode_drain_mark(where: str, data: bytes) -> DrainMark:
    fields = parse_fields(where, data)
    return DrainMark(
        since_ms=fields.count("sinceMs", bound=TIME_MS),
        by=fields.text("by", default=""),
        reason=fields.text("reason", default=""),
    )


def encode_balancing(balancing: Balancing) -> bytes:
    return to_json(
        {
            "mode": balancing.mode.value,
            "sinceMs": balancing.since_ms,
            "by": balancing.by,
            "reason": balancing.reason,
        }
    )


def decode_balancing(where: str, data: bytes) -> Balancing:
    fields = parse_fields(where, data)
    mode = fields.text("mode")
    if mode not in set(BalancingMode):
        fields.refuse("mode", " or ".join(BalancingMode))
    return Balancing(
        mode=BalancingMode(mode),
        since_ms=fields.count("sinceMs", bound=TIME_MS),
        by=fields.text("by", default=""),
        reason=fields.text("reason", default=""),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRecord:
    """One run of a sidecar, as it registered its broker.

    ``instance`` is generated at each start. It runs on ``host`` as process ``process_id``; an
    older version leaves everything empty. ``registered_at_ms`` is on its wall clock.
    ``take_overs`` counts the consecutive agents that registered soon after one another, each
    while the previous one was still registered.
    """

    instance: str = ""
    host: str = ""
    process_id: int = 0
    sidecar_url: str = ""
    registered_at_ms: int = 0
    take_overs: int = 0

    def __str__(self) -> str:
        if not self.instance:
            return "a sidecar of an older version"
        where = f"on host {self.host or '(unknown)'}, process {self.process_id}"
        return f"the sidecar {self.sidecar_url} {where}, instance {self.instance}"


def encode_agent(agent: AgentRecord) -> bytes:
    return to_json(
        {
            "instanceId": agent.instance,
            "host": agent.host,
            "processId": agent.process_id,
            "sidecarUrl": agent.sidecar_url,
            "registeredAtMs": agent.registered_at_ms,
            "takeOvers": agent.take_overs,
        }
    )


def decode_agent(where: str, data: bytes) -> AgentRecord:
    """Return the content of the mark of an agent; an empty mark is from an older version."""
    if not data:
        return AgentRecord()
    fields = parse_fields(where, data)
    return AgentRecord(
        instance=fields.text("instanceId", ""),
        host=fields.text("host", ""),
        process_id=fields.count("processId"),
        sidecar_url=fields.text("sidecarUrl", ""),
        registered_at_ms=fields.count("registeredAtMs", bound=TIME_MS),
        take_overs=fields.count("takeOvers"),
    )
