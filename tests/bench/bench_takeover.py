"""How long a cluster of real processes is without its leader and that leader's bundles.

Sidecar and broker of the leader are killed at the same moment, as by a power cut. Nobody
can take over sooner than ZooKeeper gives the session up, so times are told in multiples
of the session timeout.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Final

import aiohttp
import pytest
from cluster_processes import ProcessCluster, process_cluster
from figures import emit

from loadmanager.core.ids import BrokerId
from loadmanager.demo.cluster import TICK_MS, Member
from loadmanager.reference_broker.changes import overlaps

pytestmark = [pytest.mark.bench, pytest.mark.timeout(180)]

BROKERS: Final = 4
BUNDLES: Final = 32
REPETITIONS: Final = 3
LOOK_EVERY_S: Final = 0.05
NEW_LEADER_WITHIN_S: Final = 2.0
"""Beyond the session timeout."""

SERVED_WITHIN_S: Final = 5.0
BOUND_S: Final = 30.0
ANSWER_TIMEOUT: Final = aiohttp.ClientTimeout(total=0.5)


@dataclass(frozen=True, slots=True)
class Takeover:
    """Seconds from the kill until somebody else led, and until all bundles were served."""

    new_leader_s: float
    served_s: float
    bundles_lost: int


async def test_a_killed_leader_is_replaced_within_little_more_than_its_session(
    tmp_path: Path,
) -> None:
    async with process_cluster(tmp_path, brokers=BROKERS, bundles=BUNDLES) as processes:
        await processes.start()
        await processes.look_up_every_bundle()
        takeovers = [await _kill_leader(processes) for _ in range(REPETITIONS)]
        timeout_s = processes.session_timeout_s
        twice_served = overlaps(processes.intervals())
    for what in ("new_leader_s", "served_s"):
        seconds = [float(getattr(one, what)) for one in takeovers]
        emit(
            "takeover",
            figure=f"{what.removesuffix('_s')}, in session timeouts",
            ratio_to_session_timeout=median(seconds) / timeout_s,
            median_s=median(seconds),
            all_s=seconds,
            session_timeout_s=timeout_s,
            zookeeper_tick_ms=TICK_MS,
            brokers=BROKERS,
            bundles=BUNDLES,
            bundles_lost=[one.bundles_lost for one in takeovers],
        )
    assert twice_served == []
    assert max(one.new_leader_s for one in takeovers) <= timeout_s + NEW_LEADER_WITHIN_S
    assert max(one.served_s for one in takeovers) <= timeout_s + SERVED_WITHIN_S


async def _kill_leader(processes: ProcessCluster) -> Takeover:
    cluster = processes.cluster
    leader = await _leader_among(processes, cluster.alive)
    killed = next(member for member in cluster.alive if member.broker == leader)
    await _until_all_are_served(processes)
    lost = processes.served_now([killed])
    killed_s = monotonic()
    await cluster.kill(killed)
    new_leader_s = await _until_led(processes)
    await _until_all_are_served(processes)
    served = processes.served_now(cluster.alive)
    return Takeover(
        new_leader_s=new_leader_s - killed_s,
        served_s=max(served[bundle].start_s for bundle in lost) - killed_s,
        bundles_lost=len(lost),
    )


async def _until_led(processes: ProcessCluster) -> float:
    """Return when some living sidecar named a living leader."""
    async with asyncio.timeout(BOUND_S):
        while True:
            leader = await _leader_among(processes, processes.cluster.alive[:1])
            if leader in {member.broker for member in processes.cluster.alive}:
                return monotonic()
            await asyncio.sleep(LOOK_EVERY_S)


async def _until_all_are_served(processes: ProcessCluster) -> None:
    async with asyncio.timeout(BOUND_S):
        while True:
            if len(processes.served_now(processes.cluster.alive)) == BUNDLES:
                return
            await asyncio.sleep(LOOK_EVERY_S)


async def _leader_among(processes: ProcessCluster, members: tuple[Member, ...]) -> BrokerId | None:
    """Return whom the first of ``members`` with an answer names as leader."""
    for member in members:
        url = f"{member.sidecar_url}/admin/v2/brokers/leaderBroker"
        try:
            async with processes.http.get(url, timeout=ANSWER_TIMEOUT) as answer:
                if answer.status == 200:
                    return BrokerId((await answer.json())["brokerId"])
        except (aiohttp.ClientError, TimeoutError):
            continue
    return None
