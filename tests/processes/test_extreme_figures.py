"""A broker process that reports 2^62 producers: no process ends, and balancing goes on."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from broker_ahead import ahead_of
from cluster_processes import process_cluster
from waiting import eventually

from loadmanager.reference_broker.changes import overlaps

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

BUNDLES = 8


def exaggerate(stats: dict[str, Any]) -> None:
    """Make every figure of every bundle as large as the JSON of other programs may have it."""
    for bundle in stats["bundles"].values():
        bundle |= {"producerCount": 2**62, "consumerCount": 2**62, "msgRateIn": 4e307}


@pytest.mark.thorough
async def test_a_broker_that_tells_absurd_figures_ends_no_leader(tmp_path: Path) -> None:
    async with process_cluster(tmp_path, brokers=2, bundles=BUNDLES) as processes:
        member, other = processes.cluster.members
        async with ahead_of(processes, member) as ahead:
            ahead.spoil_stats = exaggerate
            await processes.start()
            await processes.look_up_every_bundle()
            await eventually(lambda: bool(processes.served_now([member])))

            async def metrics_of(url: str) -> str:
                return (await processes.cluster._ask(f"{url}/metrics"))[1]

            async def rounds_done() -> float:
                texts = [await metrics_of(one.sidecar_url) for one in (member, other)]
                lines = [line for text in texts for line in text.splitlines()]
                return sum(
                    float(line.split()[-1])
                    for line in lines
                    if line.startswith("loadmanager_rounds_total")
                    and ("quiet" in line or "moved" in line)
                )

            begun = await rounds_done()
            done = begun
            async with asyncio.timeout(60.0):
                while done < begun + 3:
                    done = await rounds_done()
            told = await metrics_of(member.sidecar_url)
            assert 'loadmanager_malformed_content_total{kind="stats"}' in told
            for one in (member, other):
                assert all(process.running for process in one.processes)
                text = await metrics_of(one.sidecar_url)
                counted = [
                    float(line.split()[-1])
                    for line in text.splitlines()
                    if line.startswith("loadmanager_unexpected_errors_total")
                ]
                assert counted
                assert not any(counted)
            # A request for a move is carried out as well: the leader's book is sound.
            bundle = next(iter(processes.served_now([member])))
            namespace, _, hash_range = bundle.rpartition("/")
            url = f"{other.sidecar_url}/admin/v2/namespaces/{namespace}/{hash_range}/unload"
            async with processes.http.put(url) as answer:
                assert answer.status == 204, await answer.text()
            await eventually(lambda: bundle in processes.served_now([other]))
            assert overlaps(processes.intervals()) == []
