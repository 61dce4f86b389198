"""A cluster of real processes that are killed, frozen and started again.

Every broker process and every client writes a record; `History` is made of these alone.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from time import monotonic

import aiohttp
from fault_hosts import LOOPBACK, SESSION_S, TICK_S, Host, Life, Place, sidecar_settings
from zookeeper_proxy import ZooKeeperProxy
from zookeeper_servers import PORTS_PER_MEMBER, Servers, ensemble, standalone

from loadmanager.adapters.broker.serving_record import ServingInterval, read_record
from loadmanager.checker.availability import Disturbance
from loadmanager.checker.publishing import Publish, publishes_in
from loadmanager.checker.verdict import History
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import Namespace
from loadmanager.demo.children import Child, Children, free_ports
from loadmanager.demo.cluster import HASH, KNOWN_BROKERS, NAMESPACE, to_toml
from loadmanager.demo.counts import TrafficReport
from loadmanager.demo.traffic import TrafficSettings

MARGIN_S = 1.0
"""Beyond session timeout and tick, for placing, taking locks and loading."""

WITHIN_S = SESSION_S + TICK_S + MARGIN_S
TOLERATED_S = 1.0
"""How long a bundle may be free in a hand-over."""

BUNDLES = 12
TOPICS = 24
RATE_PER_S = 40.0
CLIENTS = 2
START_BOUND_S = 60.0
CONVERGED_BOUND_S = 40.0
POLL_S = 0.1
ANSWER_TIMEOUT = aiohttp.ClientTimeout(total=1.0)


class FaultCluster:
    """ZooKeeper, three hosts and two publishing clients."""

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
        self._clients: list[Child] = []
        self._reports: dict[str, TrafficReport] = {}
        self._reading: list[asyncio.Task[None]] = []

    # --- starting ------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything; return when clients publish to every bundle."""
        await self.servers.start()
        for host in self.hosts:
            await self.start_broker(host)
            await self.start_sidecar(host)
        await self._until(self._all_know_each_other, START_BOUND_S)
        await self._create_namespace()
        for number in range(1, CLIENTS + 1):
            await self._start_client(number)
        await self.until_well(since_s=monotonic())

    async def move_every_bundle(self) -> None:
        """Have the leader give every bundle another owner, by hand; all must be well."""
        url = f"{self.hosts[0].sidecar_url}/admin/v2/namespaces/{NAMESPACE}/unload"
        async with self._http.put(url) as answer:
            if answer.status != HTTPStatus.NO_CONTENT:
                raise AssertionError(f"PUT {url}: {answer.status} {await answer.text()}")

    async def start_broker(self, host: Host) -> None:
        """Start a broker, with a record of its own."""
        name = f"broker-{host.number}"
        record = self.data_dir / f"{name}.{len(host.lives) + 1}.record"
        record.touch()
        arguments = (
            *host.place.enter,
            *("-m", "loadmanager", "broker", "--listen", host.broker),
            *("--record", str(record), "--cpu-ms-per-message", "1"),
        )
        within = host.place.broker_environment
        child = await self.children.start(name, *arguments, environment=within)
        host.lives.append(Life(record, child))

    async def start_sidecar(self, host: Host) -> None:
        """Start a sidecar."""
        name = f"sidecar-{host.number}"
        path = self.data_dir / f"{name}.toml"
        path.write_text(to_toml(sidecar_settings(host)))
        arguments = (*host.place.enter, "-m", "loadmanager", "agent", "--config", str(path))
        within = host.place.sidecar_environment
        host.sidecar = await self.children.start(name, *arguments, environment=within)

    async def restore(self) -> None:
        """Start what was killed; return when every sidecar knows every broker."""
        for host in self.hosts:
            if not host.life.child.running:
                await self.start_broker(host)
            if host.sidecar is None or not host.sidecar.running:
                await self.start_sidecar(host)
        await self._until(self._all_know_each_other, START_BOUND_S)

    async def _start_client(self, number: int) -> None:
        name = f"client-{number}"
        path, record = self.data_dir / f"{name}.json", self._record_of(name)
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
            record=str(record),
        ).save(path)
        arguments = ("-m", "loadmanager.demo.traffic", str(path))
        child = await self.children.start(name, *arguments, stdout=asyncio.subprocess.PIPE)
        self._clients.append(child)
        self._reading.append(asyncio.create_task(self._read_reports(child)))

    async def _read_reports(self, client: Child) -> None:
        stdout = client.process.stdout
        while stdout is not None and (line := await stdout.readline()):
            self._reports[client.name] = TrafficReport.from_line(line.decode())

    async def finish(self) -> Sequence[TrafficReport]:
        """Let the clients finish what is due, and return what they counted."""
        for client in self._clients:
            client.send(signal.SIGTERM)
        async with asyncio.timeout(CONVERGED_BOUND_S):
            await asyncio.gather(*self._reading)
        return [self._reports[client.name] for client in self._clients]

    # --- what was written down -----------------------------------------------------

    def spells(self) -> list[ServingInterval]:
        """Return what every broker process says it served."""
        lives = [life for host in self.hosts for life in host.lives]
        return [one for life in lives for one in read_record(life.record, life.dead_at_s)]

    def publishes(self) -> list[Publish]:
        """Return every attempt of every client."""
        paths = [self._record_of(client.name) for client in self._clients]
        return [one for path in paths for one in publishes_in(path.read_text(), str(path))]

    def history(
        self, disturbances: Sequence[Disturbance], *, from_s: float, until_s: float
    ) -> History:
        """Return everything so far, with what may have left bundles free since ``from_s``."""
        return History(
            spells=self.spells(),
            publishes=self.publishes(),
            hash_name=HASH,
            bundles=self.bundles,
            from_s=from_s,
            until_s=until_s,
            disturbances=disturbances,
            tolerated_s=TOLERATED_S,
        )

    def _record_of(self, client: str) -> Path:
        return self.data_dir / f"{client}.publishes"

    # --- how it is -----------------------------------------------------------------

    async def leader(self) -> Host:
        """Return the host that leads; all sidecars have to agree on it."""
        found: Host | None = None

        async def agreed() -> str:
            nonlocal found
            named = {await self._leader_as_told_by(host) for host in self.hosts}
            found = next((host for host in self.hosts if {host.broker} == named), None)
            return "" if found else f"leaders {named}"

        await self._until(agreed, CONVERGED_BOUND_S)
        assert found is not None
        return found

    def owned_by(self, host: Host) -> int:
        """Return how many bundles the host's broker serves now."""
        now_s = monotonic()
        spells = read_record(host.life.record, host.life.dead_at_s)
        return len({one.bundle for one in spells if one.start_s <= now_s < one.end_s})

    async def until_well(self, *, since_s: float) -> None:
        """Return when every bundle is served and each topic had a message taken ``since_s``."""

        async def ailing() -> str:
            now_s = monotonic()
            served = {one.bundle for one in self.spells() if one.start_s <= now_s < one.end_s}
            if free := set(self.bundles) - served:
                return f"free: {sorted(free)}"
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
        """Return when a host's sidecar says that it is of use."""
        await self._until(lambda: self._unready(host), START_BOUND_S)

    async def _unready(self, host: Host) -> str:
        status, text = await self._ask(f"{host.sidecar_url}/readyz")
        return "" if status == HTTPStatus.OK else f"sidecar-{host.number}: {text}"

    async def _all_know_each_other(self) -> str:
        for host in self.hosts:
            if unready := await self._unready(host):
                return unready
            _, metrics = await self._ask(f"{host.sidecar_url}/metrics")
            found = KNOWN_BROKERS.search(metrics)
            if not found or int(float(found[1])) != len(self.hosts):
                return f"sidecar-{host.number} does not know all brokers"
        return ""

    async def _leader_as_told_by(self, host: Host) -> str:
        status, text = await self._ask(f"{host.sidecar_url}/admin/v2/brokers/leaderBroker")
        return str(json.loads(text)["brokerId"]) if status == HTTPStatus.OK else "nobody"

    async def _ask(self, url: str) -> tuple[int, str]:
        try:
            async with self._http.get(url, timeout=ANSWER_TIMEOUT) as answer:
                return answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            return 0, repr(error)

    async def _create_namespace(self) -> None:
        url = f"{self.hosts[0].sidecar_url}/admin/v2/namespaces/{NAMESPACE}"
        body = {"bundles": {"numBundles": BUNDLES}}
        async with self._http.put(url, json=body) as answer:
            assert answer.status in {200, 204}, await answer.text()


@asynccontextmanager
async def fault_cluster(
    data_dir: Path,
    *,
    places: Sequence[Place] = (Place(), Place(), Place()),
    servers: int = 1,
    proxied: bool = False,
    listen: str = LOOPBACK,
) -> AsyncIterator[FaultCluster]:
    """Yield a running cluster, and end all its processes afterwards.

    Args:
        data_dir: where logs, records and ZooKeeper's data go.
        places: where the hosts run, one each.
        servers: one ZooKeeper server, or an ensemble of so many.
        proxied: whether each sidecar reaches ZooKeeper through a proxy of its own.
        listen: where one server does.
    """
    ports = free_ports(PORTS_PER_MEMBER * servers + 2 * len(places))
    of_hosts = [*zip(*(iter(ports[PORTS_PER_MEMBER * servers :]),) * 2, strict=True)]
    tick_ms = round(1000 * TICK_S)
    if servers == 1:
        service = standalone(data_dir / "zookeeper", tick_ms, ports[0], host=listen)
    else:
        service = ensemble(data_dir, tick_ms, ports[: PORTS_PER_MEMBER * servers])
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
            hosts.append(Host.at(place, number, pair, reached_at, proxy))
        cluster = FaultCluster(data_dir, service, hosts, children, http)
        await cluster.start()
        yield cluster
