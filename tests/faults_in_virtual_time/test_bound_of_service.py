"""The bound for serving again is made of the settings that the slowest way depends on."""

import asyncio

import pytest
from stories import place_all

from tests.testbed.faults.agent import SESSION_S
from tests.testbed.faults.availability_watch import served_again_within_s
from tests.testbed.faults.cluster import Cluster, make_config, play


@pytest.mark.parametrize("return_wait_s", [10.0, 20.0])
def test_brokers_that_vanish_together_are_replaced_within_the_bound(return_wait_s: float) -> None:
    config = make_config(leader={"return_wait_s": return_wait_s})
    bound_s = served_again_within_s(config)
    took_s: list[float] = []

    async def tell(cluster: Cluster) -> None:
        boundaries = await cluster.make_namespace(8)
        await place_all(cluster, boundaries)
        last = cluster.leader
        began_s = asyncio.get_running_loop().time()
        for agent in [one for one in cluster.living if one is not last]:
            agent.host.kill_broker()
            await agent.kill()
        await cluster.until(lambda: len(last.host.serving) == 8, within_s=bound_s)
        took_s.append(asyncio.get_running_loop().time() - began_s)

    play(tell, config=config)
    # Their sessions were heard of last a heartbeat before they vanished.
    assert took_s[0] > return_wait_s + SESSION_S / 2


def test_the_bound_grows_with_the_wait_where_that_takes_longest() -> None:
    bounds_s = [
        served_again_within_s(make_config(leader={"return_wait_s": wait_s}))
        for wait_s in (0.0, 5.0, 10.0, 20.0)
    ]
    # Less than a lease and a renewal: those take longer, whatever the wait.
    assert bounds_s[0] == bounds_s[1] < bounds_s[2] == bounds_s[3] - 10.0
