"""Builds that break a promise are caught: else the other tests would prove nothing.

A leader that stopped in a write, and goes on when another leads, writes nothing any more: the
build that leaves out the check of the epoch shows that it is the check that holds.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest
from fault_cluster import FaultCluster, Place, build, fault_cluster
from faults import FAULTS, drawn_from, observe
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from loadmanager.core import znodes
from loadmanager.core.orders import decode_orders
from loadmanager.reference_broker.changes import Overlap, overlaps
from tests.testbed.checker.verdict import Why

POLL_S = 0.01
ELECTED_BOUND_S = 40.0


class EpochWitness:
    def __init__(self, client: KazooClient) -> None:
        self._client = client

    async def depose(self) -> None:
        """Delete the leader's node, as an operator might; return when another is elected."""
        before = await asyncio.to_thread(self._client.exists, znodes.EPOCH)
        await asyncio.to_thread(self._client.delete, znodes.LEADER)
        deadline_s = monotonic() + ELECTED_BOUND_S
        while True:
            now = await asyncio.to_thread(self._client.exists, znodes.EPOCH)
            if now.version > before.version:
                return
            assert monotonic() < deadline_s, "nobody else was elected"
            await asyncio.sleep(POLL_S)

    async def written_late(self, within_s: float) -> Sequence[str]:
        """Return the orders of a former epoch that are written after the present one began.

        Looks for ``within_s``, or until it found some. ZooKeeper numbers its transactions:
        those after the one that made the present epoch must be of this epoch.
        """
        deadline_s = monotonic() + within_s
        while monotonic() < deadline_s:
            if late := await asyncio.to_thread(self._late):
                return late
            await asyncio.sleep(POLL_S)
        return []

    def _late(self) -> list[str]:
        late = []
        for name in self._client.get_children(znodes.ORDERS):
            path = f"{znodes.ORDERS}/{name}"
            # The epoch first: if it moves on meanwhile, nothing looks later than it was.
            epoch = self._client.exists(znodes.EPOCH)
            try:
                content, stat = self._client.get(path)
            except NoNodeError:
                continue
            written_for = decode_orders(path, content).epoch
            if stat.mzxid > epoch.mzxid and written_for < epoch.version:
                late.append(f"{path}: orders of epoch {written_for} in epoch {epoch.version}")
        return late


@asynccontextmanager
async def epoch_witness(hosts: str) -> AsyncIterator[EpochWitness]:
    """Yield a witness with a session of its own; a chroot may follow the hosts."""
    client = KazooClient(hosts=hosts)
    await asyncio.to_thread(client.start)
    try:
        yield EpochWitness(client)
    finally:
        await asyncio.to_thread(client.stop)
        await asyncio.to_thread(client.close)


pytestmark = [pytest.mark.faults, pytest.mark.processes, pytest.mark.timeout(240)]
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
        deadline_s = monotonic() + STOPPED_BOUND_S
        while self._stands():
            assert monotonic() < deadline_s, "the leader wrote no orders"
            await asyncio.sleep(0.01)

    def call_off(self) -> None:
        self._asked.unlink(missing_ok=True)

    def _stands(self) -> bool:
        return self._asked.exists()


def places(asked: Path, more: Mapping[str, str]) -> tuple[Place, ...]:
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
async def test_a_leader_that_does_not_check_its_epoch_is_caught(tmp_path: Path) -> None:
    asked = tmp_path / "stop"
    found: Sequence[str] = []
    async with fault_cluster(tmp_path, places=places(asked, {"LEAVE_OUT": "1"})) as cluster:
        for _ in range(MOST_TRIES):
            found = await late_orders(cluster, asked)
            if found:
                break
            await cluster.until_well(since_s=monotonic())
    assert found


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
        fault = FAULTS["cut sidecar off silently"]
        outcome = await observe(cluster, "cut", fault, drawn_from(1))
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
        outcome = await observe(cluster, "freeze", FAULTS["freeze sidecar"], drawn_from(1))
        assert says_so(cluster, "no_lease_end", "broker")
    assert outcome.verdict.overlaps
    assert {one.why for one in outcome.verdict.misplaced} == {Why.NEWER_OWNER}
    assert outcome.verdict.token_faults
