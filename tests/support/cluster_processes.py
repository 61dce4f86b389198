"""A cluster of real processes for benchmarks: the demo's, without its traffic and its end."""

import asyncio
import atexit
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loadmanager.adapters.zookeeper.embedded import (
    EmbeddedZooKeeper,
    EmbeddedZooKeeperError,
    find_java,
)
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, Namespace
from loadmanager.demo.cluster import (
    HASH,
    NAMESPACE,
    TICK_MS,
    Child,
    Children,
    Cluster,
    DemoSettings,
    Member,
    Table,
)
from loadmanager.demo.traffic import topic_names
from loadmanager.reference_broker.changes import ServingInterval, read_record


@cache
def shared_zookeeper() -> EmbeddedZooKeeper:
    """Return a server with the demo's tick, which ends with this process."""
    server = EmbeddedZooKeeper(tick_ms=TICK_MS)
    server.start()
    atexit.register(server.stop)
    return server


class SharingCluster(Cluster):
    """The demo's cluster on a ZooKeeper that it shares, below a path of its own."""

    _numbers = count(1)

    def __init__(
        self, settings: DemoSettings, children: Children, http: aiohttp.ClientSession
    ) -> None:
        super().__init__(settings, children, http)
        self.zookeeper = shared_zookeeper().address
        self._zookeeper_port = int(self.zookeeper.rpartition(":")[2])
        self.chroot = f"/loadmanager/cluster-{next(self._numbers)}"

    async def _start_zookeeper(self) -> Child:
        return None  # type: ignore[return-value]  # it runs

    def _sidecar_settings(self, member: Member) -> Table:
        told = super()._sidecar_settings(member)
        return {**told, "zookeeper": {**told["zookeeper"], "chroot": self.chroot}}


async def run_command(
    *arguments: str, env: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run a command in a process of its own; return its exit code, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadmanager", *arguments),
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


@dataclass(frozen=True, slots=True)
class ProcessCluster:
    cluster: Cluster
    children: Children
    http: aiohttp.ClientSession
    boundaries: Boundaries

    async def start(self) -> None:
        """Start everything; returns when each sidecar knows all brokers."""
        await self.cluster.start(lambda _: None)

    async def serve(self) -> None:
        """Start everything, and have every bundle placed."""
        await self.start()
        await self.look_up_every_bundle()

    async def look_up_every_bundle(self) -> None:
        topics = topic_names(len(self.boundaries.bundles), self.boundaries, HASH)
        for number, topic in enumerate(topics):
            member = self.cluster.members[number % len(self.cluster.members)]
            path = f"{topic.domain}/{topic.namespace}/{topic.local}"
            async with self.http.get(f"{member.sidecar_url}/lookup/v2/topic/{path}") as answer:
                assert answer.status == 200, await answer.text()

    def intervals(self, members: Iterable[Member] | None = None) -> list[ServingInterval]:
        """Return what these brokers' own records say they served; of all, if not told."""
        chosen = self.cluster.members if members is None else members
        return [one for m in chosen for one in read_record(m.record_path, m.dead_at_s)]

    def served_now(self, members: Iterable[Member]) -> dict[BundleId, ServingInterval]:
        now_s = asyncio.get_running_loop().time()
        return {one.bundle: one for one in self.intervals(members) if one.end_s > now_s}


@asynccontextmanager
async def process_cluster(
    data_dir: Path,
    *,
    brokers: int,
    bundles: int,
    make: Callable[[DemoSettings, Children, aiohttp.ClientSession], Cluster] = SharingCluster,
    **session: Any,
) -> AsyncIterator[ProcessCluster]:
    """Yield a cluster that is ready to start, and end all its processes afterwards."""
    try:
        find_java()
    except EmbeddedZooKeeperError as error:
        pytest.skip(str(error))
    settings = DemoSettings(data_dir=data_dir, brokers=brokers, bundles=bundles, topics=bundles)
    children = Children(data_dir)
    boundaries = Boundaries.even(Namespace(NAMESPACE), bundles)
    try:
        async with aiohttp.ClientSession(**session) as http:
            yield ProcessCluster(make(settings, children, http), children, http, boundaries)
    finally:
        await children.stop()
