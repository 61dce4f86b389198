"""A cluster of real processes that are killed, frozen and started again.

Every broker process and every client writes a record; `History` is made of these alone.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic
from types import MappingProxyType

import aiohttp
from fault_clients import BUNDLES, TOPICS, Clients, Sidecars
from fault_hosts import LOOPBACK, TICK_S, Host, Life, Place, sidecar_settings
from fault_stalls import Stalls
from zookeeper_proxy import ZooKeeperProxy
from zookeeper_servers import PORTS_PER_MEMBER, Servers, ensemble, standalone

from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import Namespace
from loadmanager.demo.children import Child, Children, free_ports
from loadmanager.demo.client import TrafficReport
from loadmanager.demo.cluster import HASH, NAMESPACE, to_toml
from loadmanager.reference_broker.changes import ServingInterval, read_record
from tests.testbed.checker.availability import Disturbance
from tests.testbed.checker.publishes import Publish
from tests.testbed.checker.verdict import History

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
        self._sidecars = Sidecars(http)
        self.bundles = Boundaries.even(Namespace(NAMESPACE), BUNDLES).bundles
        self._children_of_folders = {data_dir: children}
        self._publishing = Clients(data_dir, hosts, children)

    async def start(self) -> None:
        """Start everything; return when clients publish to every bundle."""
        self._turns.touch()
        await self.children.start("clock", str(STALLS_SCRIPT), str(self._turns))
        await self.servers.start()
        for host in self.hosts:
            await self.start_broker(host)
            await self.start_sidecar(host)
        await self._until(lambda: self._sidecars.strangers(self.hosts), START_BOUND_S)
        await self._sidecars.create_namespace(self.hosts[0], BUNDLES)
        await self._publishing.start_missing()
        await self.until_well(since_s=monotonic())

    async def move_every_bundle(self) -> None:
        await self._sidecars.unload_all(self.hosts[0])

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
        await self._publishing.start_missing()
        for host in self.hosts:
            if not host.life.child.running:
                await self.start_broker(host)
            if host.sidecar is None or not host.sidecar.running:
                await self.start_sidecar(host)
        await self._until(lambda: self._sidecars.strangers(self.hosts), START_BOUND_S)

    async def finish(self) -> Sequence[TrafficReport]:
        async with asyncio.timeout(CONVERGED_BOUND_S):
            return await self._publishing.finish()

    def spells(self) -> list[ServingInterval]:
        lives = [life for host in self.hosts for life in host.lives]
        return [one for life in lives for one in read_record(life.record, life.dead_at_s)]

    def publishes(self) -> list[Publish]:
        return self._publishing.publishes()

    @property
    def clients(self) -> Sequence[Child]:
        return self._publishing.running

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
            named = {await self._sidecars.leader(host) for host in self.hosts}
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
            if unheard := self._publishing.unheard():
                return f"nothing was taken of {unheard}"
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
        await self._until(lambda: self._sidecars.unready(host), START_BOUND_S)


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
            hosts.append(Host.at(place, number, pair, hosts=reached_at, proxy=proxy))
        cluster = FaultCluster(data_dir, service, hosts, children, http)
        await cluster.start()
        yield cluster
