"""How late messages may be, as the watches allow for it."""

import asyncio

from stories import story

from loadmanager.ports.coordination import Node
from tests.testbed.faults.answers_watch import LAGS_IN_A_CHAIN
from tests.testbed.faults.cluster import Cluster


@story(2)
async def test_a_late_server_and_late_replies_add_up(cluster: Cluster) -> None:
    await cluster.write("/elsewhere", b"before")
    agent = next(one for one in cluster.living if not one.leads)
    server = cluster.service.add_server()
    agent.coordination.connect_to(server)
    told_at_s: dict[bytes, float] = {}

    def told(node: Node | None) -> None:
        if node is not None:
            told_at_s[node.data] = asyncio.get_running_loop().time()

    agent.coordination.watch("/elsewhere", told)
    await cluster.until(lambda: agent.coordination.is_on(server) and told_at_s)
    cluster.service.lag(server, 1.0)
    agent.coordination.delay_replies(0.5)
    lag_s = agent.coordination.lag_s
    assert lag_s == 1.5
    began_s = asyncio.get_running_loop().time()
    await cluster.write("/elsewhere", b"after")
    await cluster.until(lambda: b"after" in told_at_s)
    # The event is as late as both, and the read that it asks for takes time again.
    assert lag_s < told_at_s[b"after"] - began_s < LAGS_IN_A_CHAIN * lag_s


@story(2)
async def test_a_sidecar_whose_messages_are_lost_cannot_connect_to_another_server(
    cluster: Cluster,
) -> None:
    agent = next(one for one in cluster.living if not one.leads)
    former = agent.coordination.session.session_id
    agent.coordination.swallow()
    server = cluster.service.add_server()
    agent.coordination.connect_to(server)
    began_s = asyncio.get_running_loop().time()
    await cluster.until(lambda: not cluster.service.lives(former))
    timeout_s = agent.coordination.session.timeout_s
    assert asyncio.get_running_loop().time() - began_s < timeout_s + 0.2
    agent.coordination.reconnect()
    await cluster.until(lambda: agent.coordination.is_on(server))
    assert agent.coordination.session.session_id != former
