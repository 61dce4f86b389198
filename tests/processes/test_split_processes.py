"""A split through Pulsar's admin path, in real processes on a real ZooKeeper."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from cluster_processes import ProcessCluster, process_cluster

from loadmanager.core.ids import TopicName
from loadmanager.demo.cluster import HASH, NAMESPACE, Member
from loadmanager.demo.traffic import topic_names
from loadmanager.reference_broker.changes import overlaps

pytestmark = [pytest.mark.processes, pytest.mark.thorough, pytest.mark.timeout(400)]

TOPICS = 40
TRIES = 1000


async def publish(processes: ProcessCluster, topic: TopicName, member: Member) -> None:
    """Publish one message as a client does: look up, send, and look up again if refused."""
    path = f"{topic.domain}/{topic.namespace}/{topic.local}"
    for _ in range(TRIES):
        async with processes.http.get(f"{member.sidecar_url}/lookup/v2/topic/{path}") as found:
            assert found.status == 200, await found.text()
            owner = (await found.json())["httpUrl"]
        try:
            async with processes.http.post(f"{owner}/publish/{path}", data=b"x") as sent:
                if sent.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.05)
    raise AssertionError(f"{topic} was not published in {TRIES} tries")


async def bounds(processes: ProcessCluster, member: Member) -> list[str]:
    url = f"{member.sidecar_url}/admin/v2/namespaces/{NAMESPACE}/bundles"
    async with processes.http.get(url) as answer:
        found: list[str] = (await answer.json())["boundaries"]
    return found


async def test_a_bundle_is_cut_by_hand_while_clients_publish(tmp_path: Path) -> None:
    async with process_cluster(tmp_path, brokers=2, bundles=2) as processes:
        await processes.start()
        first, second = processes.cluster.members
        topics = topic_names(TOPICS, processes.boundaries, HASH)
        for topic in topics:
            await publish(processes, topic, first)
        stop = asyncio.Event()

        async def keep_publishing() -> int:
            published = 0
            while not stop.is_set():
                for topic in topics:
                    await publish(processes, topic, second)
                    published += 1
            return published

        publishing = asyncio.ensure_future(keep_publishing())
        for range_text in ("0x00000000_0x80000000", "0x80000000_0xffffffff"):
            url = f"{second.sidecar_url}/admin/v2/namespaces/{NAMESPACE}/{range_text}/split"
            query = {"splitAlgorithmName": "topic_count_equally_divide"}
            async with processes.http.put(url, params=query) as answer:
                assert answer.status == 204, await answer.text()
        stop.set()
        assert await publishing > 0
        for member in (first, second):
            assert len(await bounds(processes, member)) == 5
        assert overlaps(processes.intervals()) == []
