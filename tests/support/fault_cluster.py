"""A cluster of real processes that are killed, frozen and started again.

Every broker process and every client writes a record; `History` is made of these alone.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Any

import aiohttp
from fault_stalls import Stalls
from zookeeper_proxy import ZooKeeperProxy
from zookeeper_servers import PORTS_PER_MEMBER, Servers, ensemble, standalone

from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.demo.cluster import (
    HASH,
    KNOWN_BROKERS,
    NAMESPACE,
    Child,
    Children,
    free_ports,
    to_toml,
)
from loadmanager.demo.traffic import TrafficReport, TrafficSettings, request
from loadmanager.reference_broker.changes import ServingInterval, read_record
from tests.testbed.checker.availability import Disturbance
from tests.testbed.checker.publishes import Publish, publishes_in
from tests.testbed.checker.verdict import History

LOOPBACK = "127.0.0.1"
BUILDS = Path(__file__).parents[1] / "faults" / "builds"
SESSION_S = 3.0
TICK_S = 0.3
"""ZooKeeper's. It ends sessions at whole ticks, so up to one after their timeout."""

MARGIN_S = 1.0
"""For all that the service has to do: place, take locks, load."""

WITHIN_S = SESSION_S + TICK_S + MARGIN_S
"""Within this time of a fault every bundle is served again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a host runs. ``enter`` begins the command line of its processes.

    ``address`` is its own, ``zookeeper`` the one under which it reaches ZooKeeper. What
    its broker and its sidecar write goes into folders of theirs, if they are given.
    """

    address: str = LOOPBACK
    zookeeper: str = LOOPBACK
    enter: tuple[str, ...] = ()
    sidecar_environment: Mapping[str, str] = field(default_factory=dict)
    broker_environment: Mapping[str, str] = field(default_factory=dict)
    broker_folder: Path | None = None
    sidecar_folder: Path | None = None


@dataclass(slots=True)
class Life:
    """One process of a broker. ``dead_at_s`` is when it was dead for sure, if it was killed."""

    record: Path
    child: Child
    dead_at_s: float | None = None


@dataclass(slots=True)
class Host:
    """A broker and its sidecar. ``number`` counts from 1; ``hosts`` are its ZooKeeper's."""

    number: int
    broker: BrokerId
    sidecar_url: str
    hosts: str
    place: Place
    proxy: ZooKeeperProxy | None = None
    sidecar: Child | None = None
    lives: list[Life] = field(default_factory=list)

    @property
    def life(self) -> Life:
        return self.lives[-1]

    @property
    def _sidecar(self) -> Child:
        assert self.sidecar is not None
        return self.sidecar

    async def kill(self, *, sidecar: bool = False, broker: bool = False) -> None:
        victims = [*[self._sidecar] * sidecar, *[self.life.child] * broker]
        for child in victims:
            child.send(signal.SIGKILL)
        await asyncio.gather(*(child.process.wait() for child in victims))
        if broker:
            self.life.dead_at_s = monotonic()

    def send(self, number: signal.Signals, *, sidecar: bool = False, broker: bool = False) -> None:
        for child in [*[self._sidecar] * sidecar, *[self.life.child] * broker]:
            os.killpg(child.process.pid, number)


def sidecar_settings(host: Host) -> Mapping[str, Mapping[str, Any]]:
    """Return a sidecar's configuration: quick, and never at rest, so that faults hit hand-overs."""
    listen_host, _, port = host.sidecar_url.removeprefix("http://").rpartition(":")
    return {
        "broker": {"id": host.broker, "control_timeout_s": 0.5},
        "sidecar": {"listen_host": listen_host, "listen_port": int(port), "health_port": 0},
        "security": {"anonymous": "admin"},
        "cluster": {"name": "faults"},
        "zookeeper": {
            "hosts": host.hosts,
            "session_timeout_s": SESSION_S,
            # As operators are told to: a lease counts from what ZooKeeper's leader heard, up to
            # half a tick late, so a thawed sidecar would wait for a second with the usual 2 s.
            "tick_s": TICK_S,
        },
        "host": {"scope": "process", "cores": 0.1},
        "report": {"sample_interval_s": 0.5, "min_interval_s": 0.5, "max_interval_s": 2.0},
        "leader": {"round_interval_s": 2.0, "tick_interval_s": 0.5, "settle_s": 1.0},
        "shedding": {"strategy": "ThresholdShedder", "grace_period_s": 2.0},
        "shedding.settings": {"threshold": 0.05, "history": 0.2, "min_bytes_per_s": 0.0},
        "lookup": {"wait_s": 1.0},
        "log": {"format": "console"},
    }


def build(name: str) -> Mapping[str, str]:
    """Return the environment of a process that is changed by a ``sitecustomize`` of the tests."""
    others = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{BUILDS / name}{os.pathsep}{others}".rstrip(os.pathsep)}


ANSWER_TIMEOUT = aiohttp.ClientTimeout(total=1.0)
ORDER_TIMEOUT = aiohttp.ClientTimeout(total=30.0)
DONE = frozenset({HTTPStatus.OK, HTTPStatus.NO_CONTENT})


class PublishReader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._found: list[Publish] = []

    def read(self) -> Sequence[Publish]:
        """Return every attempt; a line that is not whole yet is left to the next time."""
        with self._path.open("rb") as record:
            record.seek(self._offset)
            whole, end, _ = record.read().rpartition(b"\n")
        self._found += publishes_in((whole + end).decode())
        self._offset += len(whole) + len(end)
        return self._found


BUNDLES = 12
TOPICS = 24
RATE_PER_S = 60.0
CLIENTS = 2


@dataclass(frozen=True, slots=True)
class Client:
    child: Child
    record: PublishReader
    last_report: asyncio.Task[TrafficReport]


async def _last_report(client: Child) -> TrafficReport:
    assert client.process.stdout is not None
    lines = [line async for line in client.process.stdout if line.endswith(b"\n")]
    return TrafficReport.from_line(lines[-1].decode())


HAND_OVER_S = 0.5
"""How long a bundle may be free that is handed over; some ten milliseconds are usual."""

START_BOUND_S = 60.0
CONVERGED_BOUND_S = 40.0
POLL_S = 0.1
NOTHING: Mapping[str, str] = MappingProxyType({})
STALLS_SCRIPT = Path(__file__).with_name("fault_stalls.py")


class FaultCluster:
    def __init__(
        self,
        data_dir: Path,
        servers: Servers,
        hosts: Sequence[Host],
        children: Children,
        http: aiohttp.ClientSession,
    ) -> None:
        self.data_dir = data_dir
        self.servers = servers
        self.hosts = hosts
        self.children = children
        self._http = http
        self.bundles = Boundaries.even(Namespace(NAMESPACE), BUNDLES).bundles
        self._children_of_folders = {data_dir: children}
        self._clients: list[Client] = []

    async def start(self) -> None:
        """Start everything; return when clients publish to every bundle."""
        self._turns.touch()
        await self.children.start("clock", str(STALLS_SCRIPT), str(self._turns))
        await self.servers.start()
        for host in self.hosts:
            await self.start_broker(host)
            await self.start_sidecar(host)
        await self._until(self._strangers, START_BOUND_S)
        await self._put("", {"bundles": {"numBundles": BUNDLES}})
        await self._start_missing_clients()
        await self.until_well(since_s=monotonic())

    async def move_every_bundle(self) -> None:
        await self._put("/unload", None)

    async def start_broker(self, host: Host) -> None:
        name = f"broker-{host.number}"
        folder = host.place.broker_folder or self.data_dir
        record = folder / f"{name}.{len(host.lives) + 1}.record"
        record.touch()
        arguments = (
            *host.place.enter,
            *("-m", "loadmanager", "broker", "--listen", host.broker),
            *("--record", str(record), "--cpu-ms-per-message", "1"),
        )
        within = host.place.broker_environment
        child = await self._children_in(folder).start(name, *arguments, environment=within)
        host.lives.append(Life(record, child))

    async def start_sidecar(self, host: Host) -> None:
        name = f"sidecar-{host.number}"
        path = self.data_dir / f"{name}.toml"
        path.write_text(to_toml(sidecar_settings(host)))
        arguments = (*host.place.enter, "-m", "loadmanager", "agent", "--config", str(path))
        within = host.place.sidecar_environment
        children = self._children_in(host.place.sidecar_folder or self.data_dir)
        host.sidecar = await children.start(name, *arguments, environment=within)

    def _children_in(self, folder: Path) -> Children:
        if folder not in self._children_of_folders:
            own = Children(folder)
            own.started = self.children.started
            self._children_of_folders[folder] = own
        return self._children_of_folders[folder]

    async def restore(self) -> None:
        """Start what was killed; return when every sidecar knows every broker."""
        await self._start_missing_clients()
        for host in self.hosts:
            if not host.life.child.running:
                await self.start_broker(host)
            if host.sidecar is None or not host.sidecar.running:
                await self.start_sidecar(host)
        await self._until(self._strangers, START_BOUND_S)

    async def _start_missing_clients(self) -> None:
        while len(self.clients) < CLIENTS:
            number = len(self._clients) + 1
            name = f"client-{number}"
            path, record = self.data_dir / f"{name}.json", self.data_dir / f"{name}.publishes"
            record.touch()
            TrafficSettings(
                sidecar_urls=tuple(host.sidecar_url for host in self.hosts),
                namespace=NAMESPACE,
                hash_name=HASH,
                bundles=BUNDLES,
                topics=TOPICS,
                seed=number,
                rate_per_s=RATE_PER_S / CLIENTS,
                lookups_per_s=5.0,
                attempt_timeout_s=1.5,
            ).save(path)
            arguments = ("-m", "tests.testbed.checker.publishes", str(path), str(record))
            child = await self.children.start(name, *arguments, stdout=asyncio.subprocess.PIPE)
            reading = asyncio.create_task(_last_report(child))
            self._clients.append(Client(child, PublishReader(record), reading))

    async def finish(self) -> Sequence[TrafficReport]:
        finishing = [one for one in self._clients if one.child.running]
        for one in finishing:
            one.child.send(signal.SIGTERM)
        async with asyncio.timeout(CONVERGED_BOUND_S):
            return await asyncio.gather(*(one.last_report for one in finishing))

    def spells(self) -> list[ServingInterval]:
        lives = [life for host in self.hosts for life in host.lives]
        return [one for life in lives for one in read_record(life.record, life.dead_at_s)]

    def publishes(self) -> list[Publish]:
        return [one for client in self._clients for one in client.record.read()]

    @property
    def clients(self) -> Sequence[Child]:
        return [one.child for one in self._clients if one.child.running]

    def stalls(self) -> Stalls:
        return Stalls(self._turns)

    @property
    def _turns(self) -> Path:
        return self.data_dir / "clock.turns"

    def history(
        self, disturbances: Sequence[Disturbance], *, from_s: float, until_s: float
    ) -> History:
        return History(
            intervals=self.spells(),
            publishes=self.publishes(),
            hash_name=HASH,
            bundles=self.bundles,
            from_s=from_s,
            until_s=until_s,
            disturbances=disturbances,
            hand_over_s=HAND_OVER_S,
        )

    async def leader(self) -> Host:
        found: Host | None = None

        async def agreed() -> str:
            nonlocal found
            named = set()
            for host in self.hosts:
                status, text = await self._ask(host, "/admin/v2/brokers/leaderBroker")
                named.add(json.loads(text)["brokerId"] if status == HTTPStatus.OK else "nobody")
            found = next((host for host in self.hosts if {host.broker} == named), None)
            return "" if found else f"leaders {named}"

        await self._until(agreed, CONVERGED_BOUND_S)
        assert found is not None
        return found

    def owned_by(self, host: Host) -> int:
        now_s = monotonic()
        spells = read_record(host.life.record, host.life.dead_at_s)
        return len({one.bundle for one in spells if one.start_s <= now_s < one.end_s})

    async def until_well(self, *, since_s: float) -> None:
        async def ailing() -> str:
            now_s = monotonic()
            served = {one.bundle for one in self.spells() if one.start_s <= now_s < one.end_s}
            if free := set(self.bundles) - served:
                return f"free: {sorted(free)}"
            for one in self._clients:
                taken = any(publish.acknowledgement for publish in one.record.read())
                if one.child.running and not taken:
                    return f"nothing was taken of {one.child.name}"
            heard = {
                one.topic
                for one in self.publishes()
                if one.acknowledgement and one.acknowledgement.clock_s > since_s
            }
            return "" if len(heard) == TOPICS else f"{TOPICS - len(heard)} topics took nothing"

        await self._until(ailing, CONVERGED_BOUND_S)

    async def _until(self, lacks: Callable[[], Awaitable[str]], bound_s: float) -> None:
        deadline_s = monotonic() + bound_s
        while lacking := await lacks():
            self.children.require_running()
            assert monotonic() < deadline_s, f"{lacking}; logs in {self.data_dir}"
            await asyncio.sleep(POLL_S)

    async def until_ready(self, host: Host) -> None:
        await self._until(lambda: self._unready(host), START_BOUND_S)

    async def _unready(self, host: Host) -> str:
        status, text = await self._ask(host, "/readyz")
        return "" if status == HTTPStatus.OK else f"sidecar-{host.number}: {text}"

    async def _strangers(self) -> str:
        """Return which sidecar does not know all brokers yet; "" if all do."""
        for host in self.hosts:
            if unready := await self._unready(host):
                return unready
            _, metrics = await self._ask(host, "/metrics")
            found = KNOWN_BROKERS.search(metrics)
            if not found or int(float(found[1])) != len(self.hosts):
                return f"sidecar-{host.number} does not know all brokers"
        return ""

    async def _ask(self, host: Host, path: str) -> tuple[int, str]:
        url = f"{host.sidecar_url}{path}"
        return await request(self._http, "GET", url, timeout=ANSWER_TIMEOUT)

    async def _put(self, path: str, body: object) -> None:
        url = f"{self.hosts[0].sidecar_url}/admin/v2/namespaces/{NAMESPACE}{path}"
        status, text = await request(self._http, "PUT", url, json=body, timeout=ORDER_TIMEOUT)
        assert status in DONE, f"PUT {url}: {status} {text}"


@asynccontextmanager
async def fault_cluster(
    data_dir: Path,
    *,
    places: Sequence[Place] = (Place(), Place(), Place()),
    servers: int = 1,
    proxied: bool = False,
    listen: str = LOOPBACK,
    zookeeper_environment: Mapping[str, str] = NOTHING,
) -> AsyncIterator[FaultCluster]:
    """Yield a running cluster, and end all its processes afterwards.

    Args:
        data_dir: where logs, records and ZooKeeper's data go.
        places: where the hosts run, one each.
        servers: one ZooKeeper server, or an ensemble of so many.
        proxied: whether each sidecar reaches ZooKeeper through a proxy of its own.
        listen: where one server does.
        zookeeper_environment: of its servers.
    """
    ports = free_ports(PORTS_PER_MEMBER * servers + 2 * len(places))
    of_hosts = [*zip(*(iter(ports[PORTS_PER_MEMBER * servers :]),) * 2, strict=True)]
    tick_ms = round(1000 * TICK_S)
    if servers == 1:
        service = standalone(data_dir / "zookeeper", tick_ms, ports[0], host=listen)
    else:
        service = ensemble(data_dir, tick_ms, ports[: PORTS_PER_MEMBER * servers])
    for member in service.members:
        member.environment.update(zookeeper_environment)
    children = Children(data_dir)
    async with AsyncExitStack() as stack:
        stack.callback(service.stop)
        stack.push_async_callback(children.stop)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        hosts = []
        for number, (place, pair) in enumerate(zip(places, of_hosts, strict=True), start=1):
            proxy = None
            if proxied:
                proxy = await stack.enter_async_context(ZooKeeperProxy(service.hosts))
            reached_at = proxy.address if proxy else service.hosts_seen_from(place.zookeeper)
            broker, sidecar = (f"{place.address}:{port}" for port in pair)
            hosts.append(
                Host(number, BrokerId(broker), f"http://{sidecar}", reached_at, place, proxy)
            )
        cluster = FaultCluster(data_dir, service, hosts, children, http)
        await cluster.start()
        yield cluster
