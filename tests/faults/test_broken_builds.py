"""A build that breaks a promise is caught: else the other tests would prove nothing."""

import asyncio
from pathlib import Path

import pytest
from fault_cluster import CONVERGED_BOUND_S, FaultCluster, fault_cluster
from fault_hosts import Place, build
from fault_outcomes import drawn_from
from faults import inject

from loadmanager.checker.acknowledging import Why
from loadmanager.checker.serving import Overlap, overlaps

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]


def says_so(cluster: FaultCluster, name: str, process: str = "sidecar") -> bool:
    """Return whether every such process is of this build, by its own word."""
    logs = [cluster.data_dir / f"{process}-{host.number}.log" for host in cluster.hosts]
    return all(f"build: {name}\n" in log.read_text() for log in logs)


async def test_a_sidecar_that_does_not_fence_its_broker_is_caught(tmp_path: Path) -> None:
    places = (Place(sidecar_environment=build("no_self_fence")),) * 3
    async with fault_cluster(tmp_path, places=places, proxied=True) as cluster:
        outcome = await inject(cluster, "cut sidecar off silently", drawn_from(1))
        assert says_so(cluster, "no_self_fence")
    assert outcome.verdict.overlaps
    assert {one.why for one in outcome.verdict.misplaced} == {Why.NEWER_OWNER}
    assert outcome.verdict.token_faults


async def test_a_sidecar_that_hands_over_before_its_broker_stopped_is_caught(
    tmp_path: Path,
) -> None:
    places = (Place(sidecar_environment=build("early_hand_over")),) * 3
    async with fault_cluster(tmp_path, places=places) as cluster:
        await inject(cluster, "kill both", drawn_from(1))
        found = await until_caught(cluster)
        assert says_so(cluster, "early_hand_over")
    assert all(0 < one.end_s - one.start_s < 2 for one in found)


async def test_a_broker_that_outlives_its_lease_is_caught(tmp_path: Path) -> None:
    places = (Place(broker_environment=build("no_lease_end")),) * 3
    async with fault_cluster(tmp_path, places=places) as cluster:
        outcome = await inject(cluster, "freeze sidecar", drawn_from(1))
        assert says_so(cluster, "no_lease_end", "broker")
    assert outcome.verdict.overlaps
    assert {one.why for one in outcome.verdict.misplaced} == {Why.NEWER_OWNER}
    assert outcome.verdict.token_faults


async def until_caught(cluster: FaultCluster) -> list[Overlap]:
    """Return the overlaps once there are any: the broker that came back is given bundles."""
    async with asyncio.timeout(CONVERGED_BOUND_S):
        while not (found := overlaps(cluster.spells())):  # noqa: ASYNC110 - a file gives no event
            await asyncio.sleep(0.2)
    return found
