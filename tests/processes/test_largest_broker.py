"""A broker with many bundles, between real processes: taken, split, handed over.

`LOADMANAGER_LARGEST_BROKER=20000 pytest -m processes tests/processes/test_largest_broker.py -s`
prints how long each took with as many as the documentation promises; without the variable
there are fewer, for a busy machine. The leader places, splits and empties, asked by HTTP.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Final

import aiohttp
import pytest
from cluster_processes import ProcessCluster, process_cluster
from figures import emit

from loadmanager.core.ids import TopicName
from loadmanager.demo.cluster import HASH, NAMESPACE, Member
from loadmanager.demo.traffic import topic_names
from loadmanager.reference_broker.changes import overlaps

BUNDLES: Final = int(os.environ.get("LOADMANAGER_LARGEST_BROKER", "2000"))
CLIENTS: Final = 500
BOUND_S: Final = 120.0 + BUNDLES / 25
pytestmark = [pytest.mark.processes, pytest.mark.timeout(BOUND_S + 60.0)]


@pytest.mark.thorough
async def test_many_bundles_of_one_broker_are_taken_split_and_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADMANAGER_ZOOKEEPER__SESSION_TIMEOUT_S", "10")  # The default.
    monkeypatch.setenv("LOADMANAGER_PLANNER__MAX_IN_FLIGHT_PER_BROKER", "1000")
    async with process_cluster(tmp_path, brokers=2, bundles=BUNDLES) as processes:
        await processes.start()
        first, second = processes.cluster.members
        topics = topic_names(BUNDLES, processes.boundaries, HASH)
        await _drain(processes, "PUT", second)
        async with asyncio.timeout(BOUND_S):
            taken_s = await _look_up(processes, iter(topics), first)
            split_s = await _split(processes)
            await _served(processes, first, BUNDLES + 1)
            await _drain(processes, "DELETE", second)
            await _drain(processes, "PUT", first)
            handed_over_s = await _served(processes, second, BUNDLES + 1)
        assert overlaps(processes.intervals()) == []
        sessions = [_sessions(tmp_path / f"sidecar-{one}.log") for one in (1, 2)]
    emit(
        "largest_broker",
        figure="bundles of one broker: until all are looked up and served, until one is split, "
        "until all are handed over",
        bundles=BUNDLES,
        taken_s=taken_s,
        split_s=split_s,
        handed_over_s=handed_over_s,
    )
    assert sessions == [1, 1], "a sidecar lost its session"


async def _look_up(processes: ProcessCluster, topics: Iterator[TopicName], owner: Member) -> float:
    """Look every topic up as many clients do; return how long it took."""

    async def client(http: aiohttp.ClientSession) -> None:
        for topic in topics:
            path = f"{topic.domain}/{topic.namespace}/{topic.local}"
            url = f"{owner.sidecar_url}/lookup/v2/topic/{path}"
            while True:
                async with http.get(url) as found:
                    if found.status == 200:
                        assert (await found.json())["httpUrl"] == f"http://{owner.broker}"
                        break
                    assert found.status == 503, await found.text()
                await asyncio.sleep(1.0)

    began_s = monotonic()
    connector = aiohttp.TCPConnector(limit=CLIENTS)
    async with aiohttp.ClientSession(connector=connector) as http:
        await asyncio.gather(*(client(http) for _ in range(CLIENTS)))
    return (
        monotonic() - began_s + await _served(processes, owner, len(processes.boundaries.bundles))
    )


async def _served(processes: ProcessCluster, member: Member, count: int) -> float:
    began_s = monotonic()
    while True:
        if len(processes.served_now([member])) == count:
            return monotonic() - began_s
        await asyncio.sleep(0.5)


async def _split(processes: ProcessCluster) -> float:
    """Have the first bundle cut in two; return how long it took."""
    began_s = monotonic()
    hash_range = processes.boundaries.bundles[0].rpartition("/")[2]
    path = f"namespaces/{NAMESPACE}/{hash_range}/split?splitAlgorithmName=range_equally_divide"
    await _change(processes, "PUT", path)
    return monotonic() - began_s


async def _drain(processes: ProcessCluster, method: str, member: Member) -> None:
    await _change(processes, method, f"loadmanager/brokers/{member.broker}/drain")


async def _change(processes: ProcessCluster, method: str, path: str) -> None:
    url = f"{processes.cluster.members[0].sidecar_url}/admin/v2/{path}"
    async with processes.http.request(method, url) as answer:
        assert answer.status == 204, await answer.text()


def _sessions(log: Path) -> int:
    return len({word for word in log.read_text().split() if word.startswith("session_id=")})
