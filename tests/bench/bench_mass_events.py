"""What a whole cluster asks of ZooKeeper when much happens at once, in virtual time.

Four bundles a broker and the default configuration; nobody looks anything up but what places
the bundles, at one sidecar. Everything is counted at the service, so nothing depends on the
machine. How many sidecars: LOADMANAGER_BENCH_SIDECARS="10 20 40 80".
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Final

import pytest
from counted_requests import CountingService, counted_config
from figures import emit

from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import Cluster, topic_in
from tests.testbed.faults.virtual_time import run

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]
SIDECARS: Final = tuple(
    map(int, os.environ.get("LOADMANAGER_BENCH_SIDECARS", "10 20 40 80").split())
)
BUNDLES_A_BROKER: Final = 4
REST_S: Final = 120.0
COUNTED_S: Final = 30.0
DOWN_S: Final = 3.0
KINDS: Final = ("owned", "brokers", "children", "loads", "locks", "other reads", "writes")


def test_what_mass_events_ask_of_zookeeper() -> None:
    for sidecars in SIDECARS:
        run(_measured(sidecars), cpu_limit_s=1500)


async def _measured(sidecars: int) -> None:
    service = CountingService()
    cluster = Cluster(counted_config(), Random(1), service=service)  # noqa: S311 - to be repeatable
    try:
        async with _counted(service, sidecars, "cold start"):
            for _ in range(sidecars):
                cluster.start(cluster.add_host())
            await cluster.ready(within_s=120.0)
        boundaries = await cluster.make_namespace(BUNDLES_A_BROKER * sidecars)
        async with _counted(service, sidecars, "placement"):
            topics = [topic_in(boundaries, bundle) for bundle in boundaries.bundles]
            await asyncio.gather(*map(cluster.leader.look_up, topics))
        async with _counted(service, sidecars, "restart"):
            service.go_down()
            for agent in cluster.living:
                agent.coordination.lose_connection()
            await asyncio.sleep(DOWN_S)
            service.come_up()
            for agent in cluster.living:
                agent.coordination.connect_again()
        async with _counted(service, sidecars, "leader change"):
            await cluster.leader.app.election.resign()
        async with _counted(service, sidecars, "a tenth dies"):
            others = [agent for agent in cluster.living if agent is not cluster.leader]
            await _kill(others[: max(1, sidecars // 10)])
        async with _counted(service, sidecars, "half die"):
            others = [agent for agent in cluster.living if agent is not cluster.leader]
            await _kill([cluster.leader, *others[: len(others) // 2]])
        await cluster.settled(boundaries.bundles, within_s=sidecars + 60.0)
        cluster.check()
    finally:
        await cluster.close()


async def _kill(agents: Sequence[Agent]) -> None:
    for agent in agents:
        agent.host.kill_broker()
        await agent.kill()


@asynccontextmanager
async def _counted(service: CountingService, sidecars: int, event: str) -> AsyncIterator[None]:
    service.forget()
    seconds: list[int] = []
    watching = asyncio.ensure_future(_count_seconds(service, seconds))
    yield
    await asyncio.sleep(COUNTED_S)
    watching.cancel()
    kinds: Counter[str] = Counter()
    for (_session, name), number in service.requests.items():
        kinds[_kind(name)] += number
    read_bytes = service.read_bytes.total() + service.written_bytes.total()
    emit(
        "coordination_mass_events",
        sidecars=sidecars,
        event=event,
        requests=sum(kinds[kind] for kind in KINDS),
        of_kind=dict(kinds),
        most_in_a_second=max(seconds),
        mib=read_bytes / 2**20,
    )
    await asyncio.sleep(REST_S)


async def _count_seconds(service: CountingService, seconds: list[int]) -> None:
    before = 0
    while True:
        await asyncio.sleep(1.0)
        now = service.requests.total()
        seconds.append(now - before)
        before = now


def _kind(name: str) -> str:
    if name == "heartbeat":
        return name
    if name.startswith("children"):
        return "children"
    folders = {
        "get /loadbalance/owned": "owned",
        "get /loadbalance/brokers": "brokers",
        "get /loadbalance/loads": "loads",
        "get /namespace/acme": "locks",
        "write": "writes",
    }
    return folders.get(name, "other reads")
