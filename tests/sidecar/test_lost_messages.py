"""Every write of a small story loses its request or its reply once; the end is the same."""

import asyncio

import pytest
from stories import each_loss, served, story

from tests.testbed.faults.cluster import Cluster
from tests.testbed.faults.wires import LossPlace


async def _story(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.start(cluster.add_host())
    await cluster.ready()
    boundaries = await served(cluster, 3)
    bundle = boundaries.bundles[0]
    target = next(host for host in cluster.hosts if host is not cluster.server(bundle))
    await cluster.move_surely(bundle, target)
    await cluster.until(lambda: cluster.servers(bundle) == [target])
    follower = next(agent for agent in cluster.agents if not agent.leads)
    await follower.leave()
    await cluster.settled(boundaries.bundles)
    await asyncio.sleep(1.0)


WRITES = 26


@story(0)
async def test_the_story_has_as_many_writes_as_are_lost_here(cluster: Cluster) -> None:
    await _story(cluster)
    # Fewer if who leads, which latencies decide, has most of the bundles when the other leaves.
    assert WRITES - 8 <= cluster.losses.writes <= WRITES


@pytest.mark.parametrize(("number", "place"), each_loss(WRITES))
@story(0)
async def test_no_lost_message_changes_the_end(
    cluster: Cluster, number: int, place: LossPlace
) -> None:
    cluster.losses.place, cluster.losses.lost = place, frozenset({number})
    await _story(cluster)


@pytest.mark.parametrize("first", range(4))
@story(0)
async def test_nor_do_many(cluster: Cluster, first: int) -> None:
    cluster.losses.place, cluster.losses.lost = LossPlace.REPLY, frozenset(range(first, WRITES, 4))
    await _story(cluster)
