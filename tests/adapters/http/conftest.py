"""A fake application behind the HTTP server, and servers open on loopback."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from yarl import URL

from loadmanager.adapters.http.http_server import HttpServer
from loadmanager.adapters.http.live.page import Feed, Forwarder
from loadmanager.adapters.http.protocol import HttpProtocol
from loadmanager.adapters.http.routes import Route
from loadmanager.adapters.http.security.guard import Guard
from loadmanager.adapters.http.security.tls import TlsFiles
from loadmanager.admin.namespaces import Namespaces
from loadmanager.admin.topics import PartitionedMetadata, Partitions
from loadmanager.config.sections import HttpSettings, LookupSettings
from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import position
from loadmanager.core.ids import BrokerId, BundleId, Namespace, TopicName, namespace_of, range_of
from loadmanager.core.load import BrokerUrls
from loadmanager.core.wire.policies import bundles_to_json
from loadmanager.core.wire.records import LeaderRecord
from loadmanager.ports.lookup import (
    Conflict,
    Missing,
    NamespaceTaken,
    NamespaceUnknown,
    NotLeader,
    Owner,
    Readiness,
    Unavailable,
)
from loadmanager.telemetry.metrics import LookupMetrics

PUBLIC = Namespace("public/default")
HEAD = b"Host: x\r\nAccept: */*\r\n\r\n"


def owner_named(bundle: BundleId, broker: str, token: int = 1, epoch: int = 1) -> Owner:
    host = broker.partition(":")[0]
    inner = BrokerUrls(http_url="", broker_url=f"pulsar://{host}.inner:6650")
    return Owner(
        bundle=bundle,
        broker=BrokerId(broker),
        urls=BrokerUrls(
            http_url=f"http://{broker}",
            http_url_tls=f"https://{host}:8443",
            broker_url=f"pulsar://{host}:6650",
            broker_url_tls=f"pulsar+ssl://{host}:6651",
        ),
        listeners={"inner": inner},
        fencing_token=token,
        epoch=epoch,
    )


@dataclass
class FakeLookup:
    """An application of one process: a table of owners, and who takes what nobody owns.

    ``taker`` becomes the owner of a bundle that is asked for and has none; without
    one, nobody can take it. ``gate`` holds such questions up until it is set.
    """

    cluster_state_version: int = 1
    leader: LeaderRecord | None = None
    leads: bool = True
    taker: str | None = "b1:8080"
    reasons: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    namespaces: dict[Namespace, Boundaries] = field(default_factory=dict)
    owners: dict[BundleId, Owner] = field(default_factory=dict)
    partitioned: dict[TopicName, int] = field(default_factory=dict)
    gate: asyncio.Event | None = None
    waiting: int = 0
    breaks: bool = False

    def __post_init__(self) -> None:
        self.namespaces.setdefault(PUBLIC, Boundaries.even(PUBLIC, 4))

    def bundle_in_picture(self, topic: TopicName) -> BundleId | None:
        boundaries = self.namespaces.get(topic.namespace)
        return boundaries.at(position(topic, "murmur3")) if boundaries else None

    def give(self, bundle: BundleId, broker: str, token: int = 1) -> None:
        self.owners[bundle] = owner_named(bundle, broker, token)
        self.cluster_state_version += 1

    def recut(self, namespace: Namespace, count: int) -> None:
        """Cut a namespace into so many bundles anew; all of them have no owner."""
        self.namespaces[namespace] = Boundaries.even(namespace, count)
        self.owners.clear()
        self.cluster_state_version += 1

    def take_away(self, bundle: BundleId) -> None:
        if self.owners.pop(bundle, None):
            self.cluster_state_version += 1

    def readiness(self) -> Readiness:
        return Readiness(not self.reasons, self.reasons, self.troubles)

    def owner_if_known(self, topic: TopicName) -> Owner | None:
        if self.breaks:
            raise ZeroDivisionError("the secret of the broken picture")
        bundle = self.bundle_in_picture(topic)
        return self.owners.get(bundle) if bundle else None

    async def find_owner(self, topic: TopicName) -> Owner:
        bundle = await self.bundle_of(topic)
        await self._pass_gate()
        if bundle not in self.owners:
            if self.taker is None:
                raise Unavailable(f"no broker can take {bundle}", 2.5)
            self.give(bundle, self.taker)
        return self.owners[bundle]

    async def bundle_of(self, topic: TopicName) -> BundleId:
        bundle = self.bundle_in_picture(topic)
        if bundle is None:
            raise NamespaceUnknown(f"namespace {topic.namespace} not found")
        return bundle

    async def partitions(self, topic: TopicName) -> int:
        return self.partitioned.get(topic, 0)

    async def boundaries(self, namespace: Namespace) -> Boundaries:
        if namespace not in self.namespaces:
            raise NamespaceUnknown(f"namespace {namespace} not found")
        return self.namespaces[namespace]

    async def create_namespace(self, boundaries: Boundaries) -> None:
        if boundaries.namespace in self.namespaces:
            raise NamespaceTaken(f"namespace {boundaries.namespace} exists")
        self.namespaces[boundaries.namespace] = boundaries
        self.cluster_state_version += 1

    async def assign(self, bundle: BundleId) -> BrokerId:
        if not self.leads:
            raise NotLeader("this sidecar does not lead")
        await self._pass_gate()
        boundaries = self.namespaces.get(namespace_of(bundle))
        if boundaries is None or boundaries.at(range_of(bundle)[0]) != bundle:
            raise NamespaceUnknown(f"{bundle} is in no namespace")
        if self.taker is None:
            raise Unavailable("no broker is registered", 3.0)
        return BrokerId(self.taker)

    async def _pass_gate(self) -> None:
        if self.gate is not None:
            self.waiting += 1
            try:
                await self.gate.wait()
            finally:
                self.waiting -= 1


@dataclass
class FakeNamespaces(Namespaces):
    lookup: FakeLookup
    _default_bundles: int = 32
    policies_of: dict[Namespace, Mapping[str, Any]] = field(default_factory=dict)
    deleted: list[tuple[Namespace, bool]] = field(default_factory=list)

    async def of_tenant(self, tenant: str) -> list[Namespace]:
        found = sorted(one for one in self.lookup.namespaces if one.startswith(f"{tenant}/"))
        if not found:
            raise Missing(f"tenant {tenant} does not exist")
        return found

    async def policies(self, namespace: Namespace) -> Mapping[str, Any]:
        if namespace not in self.policies_of:
            raise NamespaceUnknown(f"namespace {namespace} does not exist")
        return self.policies_of[namespace]

    async def bundles(self, namespace: Namespace) -> dict[str, Any]:
        return bundles_to_json(await self.lookup.boundaries(namespace))

    async def put(self, boundaries: Boundaries, policies: Mapping[str, Any]) -> None:
        await self.lookup.create_namespace(boundaries)
        self.policies_of[boundaries.namespace] = policies

    async def delete(self, namespace: Namespace, *, force: bool) -> None:
        self.deleted.append((namespace, force))


@dataclass
class FakePartitions(Partitions):
    _lookup: FakeLookup
    created: dict[TopicName, int] = field(default_factory=dict)

    async def create(self, topic: TopicName, body: int | PartitionedMetadata) -> None:
        if topic in self.created:
            raise Conflict(f"topic {topic} is partitioned already")
        self.created[topic] = body if isinstance(body, int) else body.partitions

    async def remove(self, topic: TopicName) -> None:
        if self.created.pop(topic, None) is None:
            raise Missing(f"topic {topic} is not partitioned")


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class RunningServer:
    lookup: FakeLookup
    port: int
    server: HttpServer
    client: aiohttp.ClientSession
    registry: CollectorRegistry
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    async def ask(self, path: str, method: str = "GET", **options: Any) -> Reply:
        options.setdefault("allow_redirects", False)
        url = URL(self.url + path, encoded=True)  # as the test wrote it, byte for byte
        async with self.client.request(method, url, **options) as response:
            return Reply(response.status, response.headers.copy(), await response.text())

    async def send(self, raw: bytes, responses: int = 1) -> list[Reply]:
        """Send bytes as they are on a connection of their own; read so many responses."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(raw)
            return [await read_reply(reader) for _ in range(responses)]
        finally:
            writer.close()
            await writer.wait_closed()

    def sample(self, name: str, labels: dict[str, str] | None = None) -> float | None:
        return self.registry.get_sample_value(name, labels or {})


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """Read one response with a Content-Length, or without a body, from a raw connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status_line, *lines = head.rstrip("\r\n").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    body = await reader.readexactly(int(headers.get("Content-Length", "0")))
    return Reply(int(status_line.split()[1]), headers, body.decode())


StartServer = Callable[..., Awaitable[RunningServer]]


@asynccontextmanager
async def running_servers() -> AsyncIterator[StartServer]:
    opened: list[RunningServer] = []

    async def open_one(  # noqa: PLR0917 - a server has so many sides
        lookup: FakeLookup | None = None,
        lookups: LookupSettings | None = None,
        settings: HttpSettings | None = None,
        more_routes: tuple[Route, ...] = (),
        default_bundles: int = 32,
        guard: Guard | None = None,
        tls: TlsFiles | None = None,
        feed: Feed | None = None,
        forwarder: Forwarder | None = None,
        registry: CollectorRegistry | None = None,
        metrics: LookupMetrics | None = None,
    ) -> RunningServer:
        lookup = lookup or FakeLookup()
        registry = registry or CollectorRegistry()
        if metrics is None:
            metrics = LookupMetrics()
            registry.register(metrics)
        server = HttpServer(
            lookup,
            metrics=metrics,
            registry=registry,
            version="1.2.3",
            settings=settings or HttpSettings(stop_s=2.0),
            lookups=lookups,
            guard=guard,
            tls=tls,
            feed=feed,
            forwarder=forwarder,
            more_routes=[
                *FakeNamespaces(lookup, default_bundles).routes(),
                *FakePartitions(lookup).routes(),
                *more_routes,
            ],
        )
        port = await server.start("127.0.0.1", 0)
        scheme = "http" if tls is None else "https"
        one = RunningServer(lookup, port, server, aiohttp.ClientSession(), registry, scheme)
        opened.append(one)
        return one

    try:
        yield open_one
    finally:
        for one in opened:
            await one.client.close()
            await one.server.stop()


@pytest.fixture
async def start_server() -> AsyncIterator[StartServer]:
    async with running_servers() as open_one:
        yield open_one


@pytest.fixture
async def server(start_server: StartServer) -> RunningServer:
    return await start_server()


async def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - the fake's counters set no event
            await asyncio.sleep(0)


@dataclass
class Wire(asyncio.Transport):
    """A connection that keeps what is written to it, and takes chunks as they are given."""

    written: bytearray = field(default_factory=bytearray)
    closed: bool = False
    protocol: HttpProtocol | None = None
    peer: str = "127.0.0.1"

    def __post_init__(self) -> None:
        super().__init__({"peername": (self.peer, 40000)})

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        if not self.closed and self.protocol is not None:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Chunks are given, whatever is wished."""

    def resume_reading(self) -> None:
        """The same."""

    def send(self, chunk: bytes) -> None:
        if not self.closed and self.protocol is not None:
            self.protocol.data_received(chunk)

    @property
    def responses(self) -> int:
        return len(re.findall(rb"HTTP/(?:0\.9|1\.[01]) \d{3} ", self.written))

    async def until_responses(self, count: int) -> None:
        await until(lambda: self.responses >= count)

    async def replies(self) -> list[Reply]:
        reader = asyncio.StreamReader()
        reader.feed_data(bytes(self.written))
        reader.feed_eof()
        return [await read_reply(reader) for _ in range(self.responses)]


def wired(server: RunningServer, peer: str = "127.0.0.1") -> Wire:
    """Return a connection from ``peer`` without sockets, so that chunks arrive as sent."""
    wire = Wire(peer=peer)
    assert server.server._server is not None
    made = server.server._server()
    wire.protocol = made
    made.connection_made(wire)
    return wire


def seen_by_aiohttp(server: RunningServer) -> int:
    assert server.server._server is not None
    return server.server._server.requests_count


async def exchange(wire: Wire, *chunks: bytes) -> Reply:
    before = wire.responses
    for chunk in chunks:
        wire.send(chunk)
        await asyncio.sleep(0)
    await wire.until_responses(before + 1)
    return (await wire.replies())[-1]


def get(topic: str, head: bytes = HEAD) -> bytes:
    return b"GET /lookup/v2/topic/persistent/public/default/%s HTTP/1.1\r\n%s" % (
        topic.encode(),
        head,
    )


async def learn(server: RunningServer, *topics: str, head: bytes = HEAD) -> None:
    """Ask until the server knows the answers and the block of headers."""
    wire = wired(server)
    for topic in topics:
        for _ in range(3):
            assert (await exchange(wire, get(topic, head))).status == 200
    wire.close()
