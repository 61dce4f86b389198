"""Every write of a small story loses its request or its reply once; the end is the same."""

import asyncio

import pytest
from stories import place_all

from tests.testbed.faults.cluster import Cluster, make_config, play
from tests.testbed.faults.wires import Losses, LossPlace


async def _story(cluster: Cluster) -> None:
    """Register two brokers, elect, place four bundles, move one, kill one broker's sidecar."""
    for _ in range(2):
        cluster.start(cluster.add_host())
    await cluster.ready()
    boundaries = await cluster.make_namespace(3)
    await place_all(cluster, boundaries)
    bundle = boundaries.bundles[0]
    target = next(host for host in cluster.hosts if host is not cluster.server(bundle))
    await cluster.move_surely(bundle, target)
    await cluster.until(lambda: cluster.servers(bundle) == [target])
    follower = next(agent for agent in cluster.agents if not agent.leads)
    await follower.leave()
    await cluster.settled(boundaries.bundles)


def _play(losses: Losses) -> int:
    async def tell(cluster: Cluster) -> None:
        cluster.losses = losses
        await _story(cluster)
        await asyncio.sleep(1.0)

    play(tell, sidecars=0, config=make_config())
    return losses.writes


WRITES = 26


def test_the_story_has_as_many_writes_as_are_lost_here() -> None:
    # Fewer if who leads, which latencies decide, has most of the bundles when the other leaves.
    assert WRITES - 8 <= _play(Losses()) <= WRITES


@pytest.mark.parametrize("place", list(LossPlace))
@pytest.mark.parametrize("number", range(WRITES))
def test_no_single_lost_message_changes_the_end(number: int, place: LossPlace) -> None:
    _play(Losses(place=place, lost=frozenset({number})))


@pytest.mark.parametrize("seed", range(4))
def test_nor_do_many(seed: int) -> None:
    _play(Losses(place=LossPlace.REPLY, lost=frozenset(range(seed, WRITES, 4))))
