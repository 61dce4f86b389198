"""A cluster of real processes for benchmarks: the demo's, without its traffic and its end."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from loadmanager.adapters.zookeeper.java import EmbeddedZooKeeperError, find_java
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, Namespace
from loadmanager.demo.children import Children
from loadmanager.demo.cluster import HASH, NAMESPACE, Cluster, Member
from loadmanager.demo.settings import DemoSettings
from loadmanager.demo.traffic import topic_names
from loadmanager.reference_broker.changes import ServingInterval, read_record


@dataclass(frozen=True, slots=True)
class ProcessCluster:
    cluster: Cluster
    children: Children
    http: aiohttp.ClientSession
    boundaries: Boundaries

    @property
    def zookeeper(self) -> str:
        return f"127.0.0.1:{self.cluster._zookeeper_port}"

    @property
    def session_timeout_s(self) -> float:
        settings = self.cluster._sidecar_settings(self.cluster.members[0])
        return float(settings["zookeeper"]["session_timeout_s"])

    async def start(self) -> None:
        """Start everything; returns when each sidecar knows all brokers."""
        await self.cluster.start(lambda _: None)

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
    data_dir: Path, *, brokers: int, bundles: int, rate_per_s: float = 120.0
) -> AsyncIterator[ProcessCluster]:
    """Yield a cluster that is ready to start, and end all its processes afterwards.

    The more messages are expected, the less a broker burns for each.
    """
    try:
        find_java()
    except EmbeddedZooKeeperError as error:
        pytest.skip(str(error))
    settings = DemoSettings(
        data_dir=data_dir, brokers=brokers, bundles=bundles, topics=bundles, rate_per_s=rate_per_s
    )
    children = Children(data_dir)
    boundaries = Boundaries.even(Namespace(NAMESPACE), bundles)
    try:
        async with aiohttp.ClientSession() as http:
            yield ProcessCluster(Cluster(settings, children, http), children, http, boundaries)
    finally:
        await children.stop()
