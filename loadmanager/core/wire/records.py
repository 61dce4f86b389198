from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from loadmanager.core.balancing import Balancing
from loadmanager.core.bounds import EPOCH, PARTITIONS, TIME_MS
from loadmanager.core.fields import OURS, At, Form, parse_fields, to_json
from loadmanager.core.ids import BrokerId, parse_broker
from loadmanager.core.load import BrokerUrls
from loadmanager.core.wire.shared_forms import LISTENERS, urls_at


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRecord:
    """Content of an ownership lock: Pulsar's ``NamespaceEphemeralData``, with its writer.

    ``broker`` is None and ``epoch`` 0 in a lock that a Pulsar broker wrote itself.
    ``epoch`` is that of the leader whose order was carried out. A ``disabled`` bundle is
    being unloaded.
    """

    urls: BrokerUrls
    disabled: bool = False
    listeners: Mapping[str, BrokerUrls] = field(default_factory=lambda: MappingProxyType({}))
    broker: BrokerId | None = None
    epoch: int = 0


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


_LOCK: Final = Form(
    LockRecord,
    urls=urls_at("httpUrl", "httpUrlTls", "nativeUrl", "nativeUrlTls"),
    listeners=LISTENERS,
    broker=At(
        name="brokerId",
        inside=OURS,
        read=lambda ours, name: ours.parsed(name, parse_broker) if name in ours.names() else None,
    ),
    epoch=At(bound=EPOCH, inside=OURS),
)
_LEADER: Final = Form(
    LeaderRecord,
    broker=At(name="brokerId"),
    sidecar_url=At(inside=OURS),
    instance=At(name="instanceId", inside=OURS),
    epoch=At(bound=EPOCH, inside=OURS),
)
encode_leader, decode_leader = _LEADER.encode, _LEADER.decode


def encode_lock(lock: LockRecord) -> bytes:
    document = _LOCK.to_json(lock)
    if lock.broker is None:
        del document[OURS]
    return to_json(document)


def decode_lock(where: str, data: bytes) -> LockRecord:
    fields = parse_fields(where, data)
    lock = _LOCK.read(fields)
    if lock.urls == BrokerUrls():
        fields.refuse("nativeUrl", "at least one of nativeUrl, nativeUrlTls, httpUrl, httpUrlTls")
    return lock


def encode_partitions(partitions: int) -> bytes:
    return to_json({"partitions": partitions})


def decode_partitions(where: str, data: bytes) -> int:
    """Raises `MalformedContent`: there is no whole number of partitions within its bound."""
    return parse_fields(where, data).count("partitions", bound=PARTITIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainMark:
    """When, by whom and why a broker was marked, for display.

    ``since_ms`` is the wall clock of the sidecar that wrote the mark. A broker that is not to
    ``drain`` is cordoned: it takes no bundles, and is not emptied.
    """

    since_ms: int = 0
    by: str = ""
    reason: str = ""
    drain: bool = True


_DRAIN_MARK: Final = Form(DrainMark, since_ms=At(bound=TIME_MS), drain=At(omitted=True))
encode_drain_mark, decode_drain_mark = _DRAIN_MARK.encode, _DRAIN_MARK.decode
_BALANCING: Final = Form(Balancing, since_ms=At(bound=TIME_MS))
encode_balancing, decode_balancing = _BALANCING.encode, _BALANCING.decode


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


_AGENT: Final = Form(
    AgentRecord,
    instance=At(name="instanceId"),
    registered_at_ms=At(bound=TIME_MS),
)
encode_agent = _AGENT.encode


def decode_agent(where: str, data: bytes) -> AgentRecord:
    """Return the content of the mark of an agent; an empty mark is from an older version."""
    return _AGENT.decode(where, data) if data else AgentRecord()
