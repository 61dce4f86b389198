"""The leader ends, or stands still, at each write of each operation.

What was ordered is carried out all the same, what was not is as if never asked for, and
no lookup fails.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest
from stories import boundaries_now, place_all, served, start_hosts

from loadmanager.core import znodes
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.hashing import position
from loadmanager.core.ids import BundleId, TopicName
from loadmanager.core.orders import SplitOrder
from loadmanager.ports.lookup import Unavailable
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import NAMESPACE, Cluster, make_config, order, play
from tests.testbed.faults.host import Host
from tests.testbed.faults.wires import Losses

MOST_WRITES = 8
QUIET: Mapping[str, Mapping[str, Any]] = {
    "split": {"enabled": False},
    "report": {"min_interval_s": 30.0, "max_interval_s": 60.0},
    "leader": {"report_stale_s": 300.0},
}


class End(StrEnum):
    KILLED = "killed"
    FROZEN = "frozen"


@dataclass(slots=True)
class Counted(Losses):
    """Calls ``then`` at one write of the cluster, before it or when it was applied."""

    at: int = -1
    after: bool = False
    then: Callable[[], None] = field(default=lambda: None)

    def next_is_lost(self) -> bool:
        self.writes += 1
        if self.writes - 1 == self.at:
            if self.after:
                asyncio.get_running_loop().call_later(0.005, self.then)
            else:
                self.then()
        return False


@dataclass(slots=True)
class Scene:
    """A leader that has nothing to do with the bundle, and a bundle to do something with."""

    cluster: Cluster
    leader: Agent
    bundle: BundleId
    source: Host
    target: Host
    killing: asyncio.Future[None] | None = None


async def _move(scene: Scene) -> None:
    leader_term = scene.leader.app.leading.leader_term
    assert leader_term is not None
    await order(leader_term, {scene.bundle: scene.target.name})


async def _unload_to(scene: Scene) -> None:
    range_text = scene.bundle.rpartition("/")[2]
    await scene.leader.app.bundle_requests.unload(NAMESPACE, range_text, scene.target.name)


async def _unload(scene: Scene) -> None:
    range_text = scene.bundle.rpartition("/")[2]
    await scene.leader.app.bundle_requests.unload(NAMESPACE, range_text, None)


async def _split(scene: Scene) -> None:
    order = SplitOrder("range_equally_divide")
    await scene.leader.app.bundle_requests.split(NAMESPACE, scene.bundle.rpartition("/")[2], order)
    await asyncio.sleep(3.0)  # The next tick places the parts.


OPERATIONS: Mapping[str, Callable[[Scene], Awaitable[None]]] = {
    "shed": _move,
    "unload with destination": _unload_to,
    "unload": _unload,
    "split": _split,
}


async def _set_the_scene(cluster: Cluster) -> Scene:
    boundaries = await served(cluster, 8)
    leader = cluster.leader
    bundle = next(b for b in boundaries.bundles if cluster.server(b) is not leader.host)
    source = cluster.server(bundle)
    target = next(host for host in cluster.hosts if host not in {source, leader.host})
    await asyncio.sleep(SESSION_S)
    return Scene(cluster, leader, bundle, source, target)


async def _look_up_for_ever(cluster: Cluster, agent: Agent, scene: Scene) -> int:
    topics = await place_all(cluster, boundaries_now(cluster))
    asked = 0
    while True:
        for topic in topics:
            owner = cluster.agent_of(scene.leader.host.name).app.answering.owner_if_known(topic)
            if owner and owner.broker == scene.leader.host.name:
                continue  # Its end takes what it serves with it.
            going = _ordered_to_leader(scene, topic)
            try:
                await agent.look_up(topic)
            except Unavailable:
                if not going and not _ordered_to_leader(scene, topic):
                    raise
            asked += 1
        await asyncio.sleep(0.1)


def _ordered_to_leader(scene: Scene, topic: TopicName) -> bool:
    """Say whether the operation sends the topic's bundle to the leader, whose end it awaits."""
    cluster, host = scene.cluster, scene.leader.host
    bundle = boundaries_now(cluster).at(position(topic, "crc32"))
    standing = znodes.orders(host.name) in cluster.service.nodes
    return standing and bundle in cluster.orders(host).bundles


async def _carried_out(operate: Awaitable[None]) -> None:
    # The requester gets an answer; what was ordered stands all the same.
    with contextlib.suppress(LoadManagerError):
        await operate


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_has_fewer_writes_than_the_leader_ends_at_here(name: str) -> None:
    counted = Counted()

    async def tell(cluster: Cluster) -> None:
        cluster.losses = counted
        await start_hosts(cluster, 4)
        scene = await _set_the_scene(cluster)
        before = counted.writes
        await OPERATIONS[name](scene)
        await asyncio.sleep(0.1)
        # Rounds store the leader's state meanwhile: so much for the one write too many.
        assert 3 <= counted.writes - before <= MOST_WRITES + 2

    play(tell, sidecars=0, config=make_config(**QUIET))


def _end(scene: Scene, end: End) -> None:
    if end is End.FROZEN:
        scene.leader.coordination.freeze()
    else:
        scene.leader.coordination.suspend()
        scene.killing = asyncio.ensure_future(scene.leader.kill())


def _cases() -> Iterator[object]:
    """Yield each operation, write, side of it and end; most are for the thorough suite."""
    cases = itertools.product(OPERATIONS, range(MOST_WRITES), (False, True), End)
    for name, number, after, end in cases:
        quick = number < 6 and after is (number % 2 == 0) and (end is End.KILLED or number == 0)
        marks = () if quick else (pytest.mark.thorough,)
        side = "after" if after else "before"
        yield pytest.param(
            name, number, after, end, marks=marks, id=f"{name}-{end}-{side}-write-{number}"
        )


@pytest.mark.parametrize(("name", "number", "after", "end"), list(_cases()))
def test_an_operation_survives_its_leader(name: str, number: int, after: bool, end: End) -> None:
    counted = Counted(after=after)

    async def tell(cluster: Cluster) -> None:
        cluster.losses = counted
        await start_hosts(cluster, 4)
        scene = await _set_the_scene(cluster)
        counted.then = lambda: _end(scene, end)
        counted.at = counted.writes + number
        asking = next(a for a in cluster.living if a.host not in {scene.leader.host, scene.source})
        looking = asyncio.ensure_future(_look_up_for_ever(cluster, asking, scene))
        working = asyncio.ensure_future(_carried_out(OPERATIONS[name](scene)))
        await asyncio.sleep(SESSION_S + 10.0)
        scene.leader.coordination.thaw()
        await cluster.settled(boundaries_now(cluster).bundles, within_s=20.0)
        working.cancel()
        assert not looking.done(), looking.exception()
        looking.cancel()
        _check_the_end(name, scene)

    play(tell, sidecars=0, config=make_config(**QUIET))


def _check_the_end(name: str, scene: Scene) -> None:
    cluster, bundle = scene.cluster, scene.bundle
    assert len(cluster.service.epochs) in {1, 2}
    parts = [part for part in boundaries_now(cluster).bundles if part != bundle]
    if name == "split":
        assert len(parts) in {7, 9}
        ordered = [b for host in cluster.hosts for b in cluster.orders(host).bundles]
        assert sorted(ordered) == sorted(boundaries_now(cluster).bundles)
        assert all(not cluster.orders(host).splits for host in cluster.hosts)
    else:
        assert scene.bundle in cluster.orders(cluster.server(bundle)).bundles
        arrived = cluster.server(bundle) is not scene.source
        assert arrived or len(cluster.service.epochs) == 2
