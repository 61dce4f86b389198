import asyncio
import contextlib

import pytest
from stories import place_all, story

from loadmanager.common.cluster_conditions import ClusterDisagrees
from loadmanager.core import znodes
from loadmanager.core.hashing import HashName, position
from loadmanager.core.ids import TopicName, parse_topic
from loadmanager.ports.lookup import Unavailable
from tests.testbed.faults.agent import SESSION_S
from tests.testbed.faults.cluster import Cluster, make_config, play
from tests.testbed.faults.host import Host
from tests.testbed.in_process import Fault

HASHES: tuple[HashName, ...] = ("murmur3", "crc32")


@story(1)
async def test_another_hash_stops_the_sidecar_with_a_message_that_names_both(
    cluster: Cluster,
) -> None:
    cluster.config = make_config(cluster={"hash": "murmur3"})
    newcomer = cluster.start(cluster.add_host())
    await cluster.until(lambda: not newcomer.alive)
    assert isinstance(newcomer.failure, ClusterDisagrees)
    assert "hashes topics with crc32" in str(newcomer.failure)
    assert "hash = 'murmur3'" in str(newcomer.failure)
    assert not newcomer.server.open


@story(0)
async def test_an_unreachable_service_is_tried_again_for_as_long_as_it_takes(
    cluster: Cluster,
) -> None:
    agent = cluster.start(cluster.add_host())
    agent.coordination.suspend()
    await asyncio.sleep(300.0)
    assert agent.alive
    assert agent.server.open
    assert not agent.app.answering.readiness().ready
    awaited = cluster.warnings("coordination.service.unavailable")
    assert 25 <= len(awaited) <= 31
    assert "suspended" in awaited[0]["error"]
    agent.coordination.reconnect()
    await cluster.until(lambda: agent.app.answering.readiness().ready, within_s=5.0)
    assert agent.metric("loadmanager_session_state", session="connected") == 1


@story(0)
async def test_a_reply_lost_to_the_first_question_is_no_harm(cluster: Cluster) -> None:
    agent = cluster.start(cluster.add_host())
    agent.coordination.lose_next_reply()
    await cluster.until(lambda: agent.application and agent.leads)
    assert cluster.service.dump()[znodes.CLUSTER].data == b'{"format":2,"hash":"crc32"}'


@pytest.mark.parametrize("configured", [None, "murmur3"])
def test_a_sidecar_hashes_as_the_cluster_recorded(configured: str | None) -> None:
    async def tell(cluster: Cluster) -> None:
        await cluster.write(znodes.CLUSTER, b'{"format":2,"hash":"murmur3"}')
        boundaries = await cluster.make_namespace(16)
        agent = cluster.start(cluster.add_host())
        await cluster.until(lambda: agent.application and agent.app.answering.readiness().ready)
        topic = parse_topic(f"persistent://{boundaries.namespace}/elsewhere")
        recorded, default = (boundaries.at(position(topic, name)) for name in HASHES)
        assert recorded != default
        assert await agent.app.answering.bundle_of(topic) == recorded

    play(tell, sidecars=0, config=make_config(cluster={"hash": configured}))


@story(2)
async def test_without_its_broker_a_sidecar_answers_but_is_not_ready(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(2)
    topics = await place_all(cluster, boundaries)
    host = cluster.add_host()
    host.kill_broker()
    agent = cluster.start(host)
    await cluster.until(lambda: agent.cluster_state.complete and agent.cluster_state.leader)
    assert [(await agent.look_up(t)).bundle for t in topics] == list(boundaries.bundles)
    assert not agent.app.member.registered
    (reason,) = agent.app.answering.readiness().reasons
    assert reason.startswith("the broker holds no lease: ")
    host.restart_broker()
    await cluster.until(lambda: agent.app.member.registered, within_s=2.0)


async def _ask_for_ever(cluster: Cluster, topics: list[TopicName], failures: list[str]) -> None:
    number = 0
    while True:
        await asyncio.sleep(0.005)
        asking = [agent for agent in cluster.living if not agent.stop.is_set()]
        number += 1
        try:
            await asking[number % len(asking)].look_up(topics[number % len(topics)])
        except Unavailable as error:
            failures.append(str(error))


@pytest.mark.parametrize("leader_leaves", [False, True])
def test_who_leaves_hands_everything_over_and_no_lookup_fails(leader_leaves: bool) -> None:
    async def tell(cluster: Cluster) -> None:
        boundaries = await cluster.make_namespace(12)
        topics = await place_all(cluster, boundaries)
        agent = next(a for a in cluster.agents if a.leads is leader_leaves)
        failures: list[str] = []
        asking = asyncio.ensure_future(_ask_for_ever(cluster, topics, failures))
        await asyncio.sleep(1.0)
        left_at_s = asyncio.get_running_loop().time()
        await agent.leave()
        assert asyncio.get_running_loop().time() - left_at_s < 3.0
        assert agent.failure is None
        assert agent.host.serving == {}
        await cluster.settled(boundaries.bundles, within_s=1.0)
        await asyncio.sleep(1.0)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        assert failures == []
        _assert_no_hole(cluster, agent.host, longest_s=0.06)

    play(tell)


def _assert_no_hole(cluster: Cluster, left: Host, longest_s: float) -> None:
    """Each bundle of the host that left is served elsewhere within ``longest_s``."""
    begun = {i.bundle: i.start_s for h in cluster.hosts if h is not left for i in h.intervals()}
    gaps = [begun[i.bundle] - i.end_s for i in left.intervals()]
    assert gaps
    assert 0.0 <= min(gaps) <= max(gaps) < longest_s


@story(1)
async def test_the_last_one_to_leave_waits_for_nobody(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(3)
    await place_all(cluster, boundaries)
    left_at_s = asyncio.get_running_loop().time()
    await cluster.agents[0].leave()
    assert asyncio.get_running_loop().time() - left_at_s < 0.5
    assert cluster.lock_sessions() == {}
    assert cluster.hosts[0].serving == {}


@story(3)
async def test_what_nobody_takes_over_is_given_back_all_the_same(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(6)
    await place_all(cluster, boundaries)
    agent = next(a for a in cluster.agents if not a.leads and a.host.serving)
    cluster.leader.coordination.freeze()  # Nobody plans anything.
    await agent.leave()
    assert agent.host.serving == {}
    assert agent.coordination.session.session_id not in cluster.lock_sessions().values()


@story(3)
async def test_a_broker_that_hangs_keeps_its_locks_until_its_lease_is_over(
    cluster: Cluster,
) -> None:
    boundaries = await cluster.make_namespace(6)
    await place_all(cluster, boundaries)
    agent = next(a for a in cluster.agents if not a.leads and a.host.serving)
    agent.host.broker.inject(Fault.REFUSED, "unload")
    agent.host.cut = False
    await agent.leave()
    assert cluster.warnings("broker.lease.awaited")
    assert agent.host.serving == {}
    await cluster.settled(boundaries.bundles)


@story(3)
async def test_leaving_without_the_service_ends_too(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(6)
    await place_all(cluster, boundaries)
    agent = next(a for a in cluster.agents if not a.leads and a.host.serving)
    agent.coordination.suspend()
    await asyncio.wait_for(agent.leave(), 2 * SESSION_S)
    assert cluster.warnings("broker.deregistration.failed")
    assert agent.host.serving == {}
    await cluster.settled(boundaries.bundles)


@story(3)
async def test_a_leader_that_cannot_reach_the_service_leaves_all_the_same(
    cluster: Cluster,
) -> None:
    leader = cluster.leader
    leader.coordination.lose_next_request()
    await leader.leave()
    assert leader.failure is None
    await cluster.until(lambda: len(cluster.service.epochs) == 2, within_s=SESSION_S + 2.0)


@story(2)
async def test_a_sidecar_that_never_registered_leaves_at_once(cluster: Cluster) -> None:
    host = cluster.add_host()
    host.cut = True
    agent = cluster.start(host)
    await asyncio.sleep(2.0)
    left_at_s = asyncio.get_running_loop().time()
    await agent.leave()
    assert asyncio.get_running_loop().time() - left_at_s < 0.5


@story(3)
async def test_gauges_forget_a_broker_that_left(cluster: Cluster) -> None:
    other, left = cluster.agents[0], cluster.agents[2].host.name
    await asyncio.sleep(3.0)
    assert other.metric("loadmanager_picture_entries", what="brokers") == 3
    await cluster.agents[2].leave()
    await asyncio.sleep(3.0)
    assert other.metric("loadmanager_picture_entries", what="brokers") == 2
    assert (
        other.registry.get_sample_value("loadmanager_report_age_seconds", {"broker": left}) is None
    )
