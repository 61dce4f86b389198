import asyncio
from pathlib import Path

import pytest
from fault_cluster import FaultCluster, Place, build, fault_cluster
from faults import drawn_from, inject

from loadmanager.reference_broker.changes import Overlap, overlaps
from tests.testbed.checker.verdict import Why

pytestmark = [pytest.mark.faults, pytest.mark.processes, pytest.mark.timeout(120)]

# The new owner may happen to be slower than the old one's end; twelve bundles at a time are not.
MOST_HAND_OVERS_OF_ALL = 5
CLOSED_BOUND_S = 10.0


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


@pytest.mark.thorough
async def test_a_hand_over_before_the_broker_stopped_is_caught(tmp_path: Path) -> None:
    places = (Place(sidecar_environment=build("early_hand_over")),) * 3
    async with fault_cluster(tmp_path, places=places) as cluster:
        found: list[Overlap] = []
        for _ in range(MOST_HAND_OVERS_OF_ALL):
            await cluster.move_every_bundle()
            found = overlaps(cluster.spells())
            if found:
                break
        assert says_so(cluster, "early_hand_over")
        assert found
        # What still runs when the record is read counts up to its lease's end: read it again
        # once the late unloads are written.
        async with asyncio.timeout(CLOSED_BOUND_S):
            while not all(0 < one.end_s - one.start_s < 2 for one in found):
                await asyncio.sleep(0.2)
                found = overlaps(cluster.spells())
    assert found


@pytest.mark.thorough
async def test_a_broker_that_outlives_its_lease_is_caught(tmp_path: Path) -> None:
    places = (Place(broker_environment=build("no_lease_end")),) * 3
    async with fault_cluster(tmp_path, places=places) as cluster:
        outcome = await inject(cluster, "freeze sidecar", drawn_from(1))
        assert says_so(cluster, "no_lease_end", "broker")
    assert outcome.verdict.overlaps
    assert {one.why for one in outcome.verdict.misplaced} == {Why.NEWER_OWNER}
    assert outcome.verdict.token_faults
