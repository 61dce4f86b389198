"""A broker's lease while its sidecar is on a leader of the ensemble that lost the others.

Such a leader of ZooKeeper serves on for up to `syncLimit` + 1 ticks, and answers a ``sync`` by
itself. The others may have elected another leader at once, which ends sessions one timeout later.
"""

import asyncio

from stories import follower, served, story

from tests.testbed.faults.agent import SESSION_S
from tests.testbed.faults.cluster import Cluster

ELECTION_S = 0.2
NOTICED_AFTER_S = 9.0
LEASE_S = 0.66 * SESSION_S


@story()
async def test_a_leader_without_the_others_extends_no_lease(cluster: Cluster) -> None:
    boundaries = await served(cluster, 6)
    agent = follower(cluster)
    service = cluster.service
    server = service.add_server()
    agent.coordination.connect_to(server)
    await cluster.until(lambda: agent.coordination.is_on(server))
    await asyncio.sleep(2.0)
    assert agent.host.serving
    server.leave_ensemble()
    service.mute(agent.coordination.session.session_id)
    service.go_down()
    others = [one for one in cluster.living if one is not agent]
    for other in others:
        other.coordination.lose_connection()
    await asyncio.sleep(ELECTION_S)
    service.come_up()
    for other in others:
        other.coordination.connect_again()
    await asyncio.sleep(LEASE_S - ELECTION_S)
    assert not agent.host.serving
    await asyncio.sleep(NOTICED_AFTER_S - LEASE_S)
    agent.coordination.suspend()
    service.remove_server(server)
    # Others serve its bundles now. That no two ever did is checked at the end of every story.
    await asyncio.sleep(SESSION_S / 2)
    assert all(cluster.servers(bundle) for bundle in boundaries.bundles)
    agent.coordination.reconnect()
    await cluster.settled(boundaries.bundles)
