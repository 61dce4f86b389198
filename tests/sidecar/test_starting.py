import asyncio

import pytest
from stories import place_all, story

from loadmanager.common.cluster_conditions import ClusterDisagrees
from loadmanager.core import znodes
from loadmanager.core.hashing import HashName, position
from loadmanager.core.ids import parse_topic
from tests.testbed.faults.cluster import Cluster, make_config, play

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
