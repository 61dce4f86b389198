"""A lock that comes late to a broker that was given up meanwhile is given back."""

from collections.abc import Sequence

import pytest
from stories import story

from loadmanager.core import znodes
from loadmanager.ports.coordination import Create, Operation
from loadmanager.ports.lookup import Unavailable
from tests.testbed.faults.agent import SESSION_S
from tests.testbed.faults.cluster import Cluster, topic_in


@story(1)
async def test_a_lock_that_is_taken_after_the_broker_was_given_up_is_dropped_again(
    cluster: Cluster,
) -> None:
    (bundle,) = (boundaries := await cluster.make_namespace(1)).bundles
    agent = cluster.agents[0]

    def freeze_and_be_late(operations: Sequence[Operation]) -> None:
        lock = znodes.lock(bundle)
        if any(isinstance(one, Create) and one.path == lock for one in operations):
            agent.host.freeze_broker()
            # The lease has run out by then, and the session has not.
            agent.coordination.delay_commits_s = 0.95 * SESSION_S
            agent.coordination.before_commit = None

    agent.coordination.before_commit = freeze_and_be_late
    with pytest.raises(Unavailable):
        await agent.look_up(topic_in(boundaries, bundle))
    agent.coordination.delay_commits_s = 0.0
    await cluster.until(lambda: not agent.app.member.registered, 2 * SESSION_S)
    agent.host.thaw_broker()
    await cluster.until(lambda: cluster.servers(bundle), 2 * SESSION_S)
