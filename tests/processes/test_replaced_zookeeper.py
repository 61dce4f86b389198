import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from time import monotonic

import aiohttp
import pytest
from cluster_processes import ProcessCluster, process_cluster
from kazoo.client import KazooClient
from waiting import eventually

from loadmanager.demo.cluster import (
    NAMESPACE,
    READY_BOUND_S,
    TICK_MS,
    Child,
    Children,
    Cluster,
    DemoSettings,
    Member,
    no_listener,
)
from loadmanager.reference_broker.changes import ServingInterval, overlaps, read_record

pytestmark = [pytest.mark.processes, pytest.mark.thorough, pytest.mark.timeout(300)]
BUNDLES = 8
AGED = "/aged"
TRANSACTIONS = 300
REPLACED = "zookeeper.data.replaced"
TOLD_WITHIN_S = 30.0
"""Three session timeouts and more: time enough for a busy machine."""


class LastingCluster(Cluster):
    def __init__(
        self, settings: DemoSettings, children: Children, http: aiohttp.ClientSession
    ) -> None:
        super().__init__(settings, children, http)
        self.zookeeper_dir = settings.data_dir / "zookeeper-data"
        self.records: list[tuple[Path, float | None]] = []
        self._server: Child | None = None

    async def _start_zookeeper(self) -> Child:
        """Start it before all else, and let it have worked for a while."""
        await self.start_zookeeper()
        await asyncio.to_thread(age, self.zookeeper)
        assert self._server is not None
        return self._server

    async def start_zookeeper(self) -> None:
        """Start it on the data it has; returns when it listens."""
        self._server = await self._children.start(
            "zookeeper",
            *("-m", "loadmanager", "zookeeper", "--data-dir", str(self.zookeeper_dir)),
            *("--port", str(self._zookeeper_port), "--tick-ms", str(TICK_MS)),
            ends_by=signal.SIGTERM,
        )
        await self.until(lambda: no_listener(self._zookeeper_port))

    async def stop_zookeeper(self) -> None:
        """Stop it; returns when it has ended."""
        assert self._server is not None
        self._server.send(signal.SIGTERM)
        await self._server.process.wait()

    async def restart_broker(self, member: Member) -> None:
        broker, sidecar = member.processes
        broker.send(signal.SIGKILL)
        await broker.process.wait()
        self.records.append((member.record_path, monotonic()))
        member.record_path = member.record_path.with_suffix(f".{len(self.records)}")
        member.processes = (await self._start_broker(member), sidecar)
        await self.until(lambda: self.unready(member))

    async def until(self, lacks: Callable[[], Awaitable[str]]) -> None:
        assert self._server is not None
        await self._children.wait_until(
            lacks, child=self._server, what="of use", bound_s=READY_BOUND_S
        )

    async def until_all(self, lacks: Callable[[Member], Awaitable[str]]) -> None:
        for member in self.members:
            await self.until(partial(lacks, member))

    async def unready(self, member: Member) -> str:
        status, text = await self._ask(f"{member.sidecar_url}/readyz")
        return "" if status == HTTPStatus.OK else text

    async def lacks_refusal(self, member: Member) -> str:
        """Return what a sidecar says of itself unless its broker refuses it."""
        text = await self.unready(member)
        return "" if "is older than" in text else text or "ready"

    async def unload_all(self) -> None:
        url = f"{self.members[0].sidecar_url}/admin/v2/namespaces/{NAMESPACE}/unload"
        async with self._http.put(url) as answer:
            assert answer.status == HTTPStatus.NO_CONTENT, await answer.text()

    def log(self, member: Member) -> str:
        return member.processes[1].log_path.read_text()

    def intervals(self) -> list[ServingInterval]:
        living = [(member.record_path, None) for member in self.members]
        return [one for record in (*self.records, *living) for one in read_record(*record)]


def age(address: str) -> None:
    """Have a server see transactions, as one that has worked for a while."""
    client = KazooClient(address)
    client.start()
    client.ensure_path(AGED)
    for _ in range(TRANSACTIONS):
        client.set(AGED, b"")
    client.stop()
    client.close()


async def until_replaced(cluster: LastingCluster) -> None:
    await eventually(
        lambda: all(REPLACED in cluster.log(member) for member in cluster.members),
        within_s=TOLD_WITHIN_S,
    )


Serving = tuple[LastingCluster, ProcessCluster]


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[Serving]:
    async with process_cluster(
        tmp_path, brokers=2, bundles=BUNDLES, make=LastingCluster
    ) as processes:
        cluster = processes.cluster
        assert isinstance(cluster, LastingCluster)
        await processes.serve()
        await eventually(lambda: len(processes.served_now(cluster.members)) == BUNDLES)
        yield cluster, processes


async def test_an_empty_zookeeper_is_told_and_restarted_brokers_serve(serving: Serving) -> None:
    cluster, processes = serving
    await cluster.stop_zookeeper()
    shutil.rmtree(cluster.zookeeper_dir)
    await cluster.start_zookeeper()
    await until_replaced(cluster)
    await cluster.until_all(cluster.lacks_refusal)
    assert processes.served_now(cluster.members) == {}

    for member in cluster.members:
        await cluster.restart_broker(member)
    await cluster._create_namespace()
    await processes.look_up_every_bundle()
    await eventually(lambda: len(processes.served_now(cluster.members)) == BUNDLES)
    assert overlaps(cluster.intervals()) == []


async def test_an_older_zookeeper_is_told_and_served_by_with_no_hand(serving: Serving) -> None:
    """No broker was registered after the copy was made, so none knows a newer epoch."""
    cluster, processes = serving
    copy = cluster.zookeeper_dir.with_name("copy")
    await cluster.stop_zookeeper()
    shutil.copytree(cluster.zookeeper_dir, copy)
    await cluster.start_zookeeper()
    await cluster.until_all(cluster.unready)
    await cluster.unload_all()
    await processes.look_up_every_bundle()
    await asyncio.to_thread(age, cluster.zookeeper)

    await cluster.stop_zookeeper()
    shutil.rmtree(cluster.zookeeper_dir)
    shutil.move(copy, cluster.zookeeper_dir)
    await cluster.start_zookeeper()
    await until_replaced(cluster)
    await cluster.until_all(cluster.unready)
    await processes.look_up_every_bundle()
    await eventually(lambda: len(processes.served_now(cluster.members)) == BUNDLES)
    assert overlaps(cluster.intervals()) == []
