"""A leader that stopped in a write, and goes on when another leads, writes nothing any more.

The build that leaves out the check of the epoch shows that it is the check that holds.
"""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic

import pytest
from epoch_witness import epoch_witness
from fault_cluster import FaultCluster, fault_cluster
from fault_hosts import Place, build

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]

STOPPED_BOUND_S = 40.0
LATE_WITHIN_S = 2.0
# A machine that stalls may let the stopped leader's session end before it goes on.
MOST_TRIES = 5


class Stop:
    """Asks the leader to stop at its next write of orders, by a file that it takes away then."""

    def __init__(self, asked: Path) -> None:
        self._asked = asked
        asked.touch()

    async def done(self) -> None:
        """Return when it has stopped."""
        deadline_s = monotonic() + STOPPED_BOUND_S
        while self._stands():
            assert monotonic() < deadline_s, "the leader wrote no orders"
            await asyncio.sleep(0.01)

    def call_off(self) -> None:
        """Ask no more."""
        self._asked.unlink(missing_ok=True)

    def _stands(self) -> bool:
        return self._asked.exists()


def places(asked: Path, more: Mapping[str, str]) -> tuple[Place, ...]:
    """Return three hosts of the build."""
    environment = {**build("stops_at_orders"), "STOP_FILE": str(asked), **more}
    return (Place(sidecar_environment=environment),) * 3


async def late_orders(cluster: FaultCluster, asked: Path) -> Sequence[str]:
    """Return what a leader wrote that stopped in a write and went on when another led."""
    former = await cluster.leader()
    moving = asyncio.ensure_future(cluster.move_every_bundle())
    stop = Stop(asked)
    try:
        await stop.done()
        async with epoch_witness(f"{cluster.servers.hosts}/loadmanager/faults") as witness:
            await witness.depose()
            former.send(signal.SIGCONT, sidecar=True)
            return await witness.written_late(LATE_WITHIN_S)
    finally:
        stop.call_off()
        former.send(signal.SIGCONT, sidecar=True)
        moving.cancel()
        await asyncio.wait({moving})


async def test_orders_of_a_former_leader_are_refused(tmp_path: Path) -> None:
    asked = tmp_path / "stop"
    async with fault_cluster(tmp_path, places=places(asked, {})) as cluster:
        assert await late_orders(cluster, asked) == []
        await cluster.until_well(since_s=monotonic())


@pytest.mark.thorough
async def test_a_leader_that_writes_without_the_check_of_its_epoch_is_caught(
    tmp_path: Path,
) -> None:
    asked = tmp_path / "stop"
    found: Sequence[str] = []
    async with fault_cluster(tmp_path, places=places(asked, {"LEAVE_OUT": "1"})) as cluster:
        for _ in range(MOST_TRIES):
            found = await late_orders(cluster, asked)
            if found:
                break
            await cluster.until_well(since_s=monotonic())
    assert found
