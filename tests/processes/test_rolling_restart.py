import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import aiohttp
import pytest
from cluster_processes import ProcessCluster, process_cluster

from loadmanager.core.ids import TopicName
from loadmanager.demo.cluster import HASH, Member
from loadmanager.demo.traffic import topic_names
from loadmanager.reference_broker.changes import ServingInterval, overlaps, read_record

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]
BUNDLES = 24
TRIES = 1000
STOP_BOUND_S = 60.0


class Clients:
    def __init__(self, processes: ProcessCluster, topics: Sequence[TopicName]) -> None:
        self._processes = processes
        self._topics = topics
        self.stopping: Member | None = None
        self.done = False
        self.published = 0

    async def run(self, number: int) -> None:
        """Publish until done; a lookup or a message that fails for good fails the test."""
        while not self.done:
            for topic in self._topics[number::4]:
                await self._publish(topic)
                self.published += 1
                await asyncio.sleep(0.01)  # The processes that start need the cores too.

    async def _publish(self, topic: TopicName) -> None:
        path = f"{topic.domain}/{topic.namespace}/{topic.local}"
        for _ in range(TRIES):
            owner = await self._look_up(path)
            try:
                async with self._processes.http.post(f"{owner}/publish/{path}", data=b"x") as sent:
                    if sent.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.02)
        raise AssertionError(f"{topic} was not published in {TRIES} tries")

    async def _look_up(self, path: str) -> str:
        members = [m for m in self._processes.cluster.members if m is not self.stopping]
        member = members[self.published % len(members)]
        url = f"{member.sidecar_url}/lookup/v2/topic/{path}"
        async with self._processes.http.get(url) as found:
            assert found.status == 200, await found.text()
            return str((await found.json())["httpUrl"])


async def stop(member: Member, number: int) -> None:
    child = member.processes[number]
    child.send(signal.SIGTERM)
    async with asyncio.timeout(STOP_BOUND_S):
        await child.process.wait()


async def restart(processes: ProcessCluster, member: Member) -> list[ServingInterval]:
    """Stop sidecar and broker of a member and start both again; return what it served before."""
    cluster = processes.cluster
    await stop(member, 1)
    assert member.processes[1].process.returncode == 0, member.processes[1].log_tail()
    await stop(member, 0)
    served = read_record(member.record_path, monotonic())
    member.record_path = member.record_path.with_suffix(".second")
    broker = await cluster._start_broker(member)
    member.processes = (broker, await cluster._start_sidecar(member))
    await asyncio.gather(*(cluster._wait_until_ready(each) for each in cluster.members))
    return served


async def loads(processes: ProcessCluster) -> list[int]:
    return [len(processes.served_now([member])) for member in processes.cluster.members]


async def test_clients_do_not_notice_a_rolling_restart(tmp_path: Path) -> None:
    async with process_cluster(tmp_path, brokers=3, bundles=BUNDLES) as processes:
        await processes.serve()
        clients = Clients(processes, topic_names(BUNDLES, processes.boundaries, HASH))
        before: list[ServingInterval] = []
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(clients.run(number)) for number in range(4)]
            for member in processes.cluster.members:
                clients.stopping = member
                await asyncio.sleep(0.5)
                before += await restart(processes, member)
                clients.stopping = None
                await asyncio.sleep(0.5)
            clients.done = True
        assert all(each.done() for each in running)
        assert clients.published > 100
        assert overlaps([*before, *processes.intervals()]) == []
        assert sum(await loads(processes)) == BUNDLES
        # Each was emptied by the leader: nothing was left to be given up.
        for number in range(1, 4):
            log = (tmp_path / f"sidecar-{number}.log").read_text()
            (ended,) = [line for line in log.splitlines() if "broker.drain.ended" in line]
            assert " left=0 " in ended
