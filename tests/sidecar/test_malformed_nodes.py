import asyncio
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from stories import place_all, placed, reasons, served, served_beside, story

from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, Namespace, parse_broker, parse_topic
from loadmanager.core.orders import Orders, encode_orders
from loadmanager.core.wire.policies import encode_boundaries
from loadmanager.core.wire.records import LeaderRecord, encode_leader
from loadmanager.core.wire.reports import decode_registration, encode_registration
from loadmanager.ports.lookup import Unavailable
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import NAMESPACE, Cluster, topic_in

GARBAGE = b"\x00 neither JSON nor zlib"


def _refused(cluster: Cluster, path: str) -> bool:
    return any(
        entry["path"] == path and path in entry["error"]
        for entry in cluster.warnings("znode.content.refused")
    )


@story()
async def test_a_malformed_registration_leaves_one_broker_out(cluster: Cluster) -> None:
    stranger = parse_broker("stranger:8080")
    await cluster.write(znodes.registration(stranger), GARBAGE)
    await cluster.until(lambda: _refused(cluster, znodes.registration(stranger)))
    for agent in cluster.agents:
        assert stranger not in agent.cluster_state.brokers
        assert len(agent.cluster_state.brokers) == 3
        assert agent.cluster_state.complete
        assert agent.metric("loadmanager_malformed_content_total", kind="registration") == 1

    of_another = cluster.service.dump()[znodes.registration(cluster.hosts[0].name)].data
    await cluster.write(znodes.registration(stranger), of_another)
    await cluster.until(
        lambda: (
            cluster.agents[0].metric("loadmanager_malformed_content_total", kind="registration")
            == 2
        )
    )
    assert "the node's own name" in cluster.warnings("znode.content.refused")[-1]["error"]

    of_stranger = replace(decode_registration("here", of_another), broker=stranger)
    right = encode_registration(of_stranger)
    await cluster.write(znodes.registration(stranger), right)
    await cluster.until(lambda: all(stranger in a.cluster_state.brokers for a in cluster.agents))


@story()
async def test_malformed_loads_keep_a_broker_from_bundles(cluster: Cluster) -> None:
    stranger = parse_broker("stranger:8080")
    of_another = cluster.service.dump()[znodes.registration(cluster.hosts[0].name)].data
    of_stranger = replace(decode_registration("here", of_another), broker=stranger)
    await cluster.write(znodes.registration(stranger), encode_registration(of_stranger))
    bomb = zlib.compress(b'{"version":1,"x":"' + b" " * 100_000_000 + b'"}', 9)
    await cluster.write(znodes.loads(stranger), bomb)
    await cluster.until(lambda: _refused(cluster, znodes.loads(stranger)))
    leader = cluster.leader
    assert leader.metric("loadmanager_malformed_content_total", kind="loads") == 1
    assert stranger in leader.cluster_state.brokers
    assert stranger not in leader.cluster_state.loads.reports
    await served(cluster, 3)


@story()
async def test_a_node_with_a_name_that_is_none_is_left_out(cluster: Cluster) -> None:
    for folder in (znodes.BROKERS, znodes.OWNED, znodes.ORDERS):
        await cluster.write(f"{folder}/no-port", b"{}")
    await cluster.leader.leave()
    await cluster.until(lambda: len(cluster.service.epochs) == 2)
    await served(cluster, 2)
    assert cluster.warnings("znode.name.refused")
    assert _refused(cluster, f"{znodes.BROKERS}/no-port") or any(
        "no-port" in e["error"] for e in cluster.warnings("znode.content.refused")
    )


@story()
async def test_a_malformed_owned_list_changes_nothing_else(cluster: Cluster) -> None:
    boundaries = await served(cluster, 3)
    path = znodes.owned(parse_broker("stranger:8080"))
    await cluster.write(path, GARBAGE)
    await cluster.until(lambda: _refused(cluster, path))
    await cluster.settled(boundaries.bundles)
    assert cluster.agents[0].metric("loadmanager_malformed_content_total", kind="owned") == 1


@story()
async def test_garbage_for_orders_is_put_right_by_the_next_leader(cluster: Cluster) -> None:
    boundaries = await served(cluster, 6)
    places = {bundle: cluster.server(bundle) for bundle in boundaries.bundles}
    leader = cluster.leader
    host = next(host for host in cluster.hosts if host is not leader.host and host.serving)
    path = znodes.orders(host.name)
    await leader.kill()  # It would put them right at its next round.
    await cluster.write(path, GARBAGE)
    await cluster.until(lambda: _refused(cluster, path))
    agent = cluster.agent_of(host.name)
    assert agent.metric("loadmanager_malformed_content_total", kind="orders") == 1
    await asyncio.sleep(3.0)
    kept = {bundle: place for bundle, place in places.items() if place is host}
    assert {bundle: cluster.server(bundle) for bundle in kept} == kept

    await cluster.until(lambda: len(cluster.service.epochs) == 2)
    await cluster.settled(boundaries.bundles)
    assert {bundle: cluster.server(bundle) for bundle in kept} == kept
    assert cluster.orders(host).bundles >= kept.keys()
    heir = cluster.leader
    assert heir.metric("loadmanager_malformed_content_total", kind="orders") >= 1


@story()
async def test_malformed_boundaries_leave_the_former_ones(cluster: Cluster) -> None:
    boundaries, topics = await placed(cluster, 2)
    path, locks = znodes.local_policies(NAMESPACE), cluster.lock_sessions()
    await cluster.write(path, GARBAGE)
    await cluster.until(lambda: _refused(cluster, path))
    rounds = partial(cluster.leader.metric, "loadmanager_rounds_total", outcome="quiet")
    done = rounds()
    await cluster.until(lambda: rounds() >= done + 3)
    assert cluster.lock_sessions() == locks
    agent = cluster.agents[0]
    assert agent.metric("loadmanager_malformed_content_total", kind="boundaries") == 1
    assert (await agent.look_up(topics[0])).bundle == boundaries.bundles[0]

    fresh = parse_topic("persistent://other/one/t")
    await cluster.write(znodes.local_policies(fresh.namespace), GARBAGE)
    with pytest.raises(Unavailable, match=r"bundles of other/one cannot be read: .*other/one"):
        await agent.look_up(fresh)
    assert agent.metric("loadmanager_malformed_content_total", kind="boundaries") == 2


@story()
async def test_changed_and_deleted_boundaries_are_heard_of(cluster: Cluster) -> None:
    _, topics = await placed(cluster, 2)
    agent = cluster.agents[0]
    path = znodes.local_policies(NAMESPACE)
    await cluster.write(path, encode_boundaries(Boundaries.even(NAMESPACE, 4)))
    await cluster.until(lambda: len(agent.cluster_state.known_boundaries(NAMESPACE).bundles) == 4)  # type: ignore[union-attr]
    version = agent.app.answering.cluster_state_version
    await cluster.delete(path)
    await cluster.until(lambda: agent.cluster_state.known_boundaries(NAMESPACE) is None)
    assert agent.app.answering.cluster_state_version > version
    assert agent.app.answering.owner_if_known(topics[0]) is None
    again = await cluster.make_namespace(2)
    assert (await agent.look_up(topic_in(again, again.bundles[0]))).bundle == again.bundles[0]


@story(1)
async def test_a_lock_that_goes_without_a_list_that_changes_is_taken(cluster: Cluster) -> None:
    (agent,), boundaries = cluster.agents, await cluster.make_namespace(1)
    (bundle,) = boundaries.bundles
    operator = await cluster.operator()
    await operator.create(znodes.lock(bundle), GARBAGE, ephemeral=True)
    looking = asyncio.ensure_future(agent.look_up(topic_in(boundaries, bundle)))
    await cluster.until(lambda: _refused(cluster, znodes.lock(bundle)))
    await operator.delete(znodes.lock(bundle))
    await cluster.until(lambda: bundle in cluster.hosts[0].serving, within_s=1.0)
    assert (await looking).bundle == bundle


@story(1)
async def test_namespaces_with_the_same_start_of_name_do_not_mix(cluster: Cluster) -> None:
    first = await cluster.make_namespace(2, Namespace("acme/a"))
    second = await cluster.make_namespace(2, Namespace("acme/ab"))
    await place_all(cluster, first)
    agent = cluster.agents[0]
    for bundle in second.bundles:
        await agent.look_up(topic_in(second, bundle))
    await cluster.settled([*first.bundles, *second.bundles])
    assert len(cluster.hosts[0].serving) == 4


TOO_LARGE = "1" + 400 * "0"


async def _serving(cluster: Cluster) -> tuple[Agent, list[BundleId]]:
    boundaries, agent = await served_beside(cluster, 6)
    return agent, list(boundaries.bundles)


def _of_an_epoch(epoch: int) -> Callable[[Orders], bytes]:
    return lambda _: encode_orders(Orders(epoch))


def _the_same(orders: Orders) -> bytes:
    return encode_orders(replace(orders, epoch=2**62))


def _too_large(_: Orders) -> bytes:
    return b'{"epoch":' + TOO_LARGE.encode() + b',"bundles":{}}'


@pytest.mark.parametrize(
    ("spoilt", "epoch"),
    [
        (_of_an_epoch(2**62), 2**62),
        (_of_an_epoch(2**63 - 1), 2**63 - 1),
        (_the_same, 2**62),
        (_too_large, None),
    ],
)
@story(leader={"round_interval_s": 10.0})
async def test_orders_of_an_epoch_to_come_are_refused_told_and_written_again(
    cluster: Cluster, spoilt: Callable[[Orders], bytes], epoch: int | None
) -> None:
    agent, bundles = await _serving(cluster)
    before = dict(agent.host.serving)
    content = spoilt(cluster.orders(agent.host))
    await cluster.write(znodes.orders(agent.host.name), content)
    await cluster.until(lambda: "orders" in reasons(agent), within_s=1.0)
    assert agent.metric("loadmanager_orders_refused") == 1
    assert agent.host.serving == before
    if epoch is not None:
        assert str(epoch) in reasons(agent)
        (refused, *_) = cluster.warnings("orders.epoch.refused")
        assert (refused["epoch"], refused["newest"]) == (epoch, 1)
    await cluster.until(lambda: not reasons(agent), within_s=21.0)
    assert agent.metric("loadmanager_orders_refused") == 0
    assert agent.host.serving == before
    assert cluster.orders(agent.host).epoch == 1
    # Orders that came after them are obeyed.
    await cluster.moved(bundles[0], agent.host)
    await cluster.settled(bundles)


@story(leader={"round_interval_s": 300.0})
async def test_refused_orders_are_told_once_a_minute(cluster: Cluster) -> None:
    agent, _ = await _serving(cluster)
    for number in range(240):
        await cluster.write(znodes.orders(agent.host.name), encode_orders(Orders(2**62 + number)))
        await asyncio.sleep(0.5)
    assert 2 <= len(cluster.warnings("orders.epoch.refused")) <= 3


@story()
async def test_leaders_of_a_new_epoch_node_are_obeyed(cluster: Cluster) -> None:
    agent, bundles = await _serving(cluster)
    for _ in range(2):
        operator = await cluster.operator()
        former = len(cluster.service.epochs)
        await operator.delete(znodes.LEADER)
        await cluster.until(lambda former=former: len(cluster.service.epochs) > former)  # type: ignore[misc] # bound now
        await cluster.move_surely(bundles[0], agent.host)
        await cluster.until(lambda: cluster.servers(bundles[0]) == [agent.host])
        await asyncio.sleep(1.0)
    cluster.service.epochs.clear()  # They begin anew.
    await operator.delete(znodes.EPOCH)
    await operator.delete(znodes.LEADER)
    await cluster.until(lambda: cluster.service.epochs == [1])
    other = next(host for host in cluster.hosts if host is not agent.host)
    await cluster.move_surely(bundles[0], other)
    await cluster.until(lambda: cluster.servers(bundles[0]) == [other])
    assert cluster.warnings("zookeeper.data.replaced")
    await cluster.settled(bundles)
    assert not reasons(agent)


def _absurd(leader: Agent) -> bytes:
    identity = leader.context.identity
    record = LeaderRecord(
        broker=identity.broker,
        service_url=identity.urls.http_url,
        sidecar_url=identity.sidecar_url,
        instance=identity.instance,
        epoch=2**62,
    )
    return encode_leader(record)


def _unreadable(_: Agent) -> bytes:
    return b'{"loadManager":{"epoch":' + TOO_LARGE.encode() + b"}}"


@pytest.mark.parametrize("content", [_absurd, _unreadable, lambda _: GARBAGE])
@story()
async def test_a_leader_whose_node_got_an_absurd_epoch_or_garbage_is_elected_anew(
    cluster: Cluster, content: Callable[[Agent], bytes]
) -> None:
    agent, bundles = await _serving(cluster)
    leader = cluster.leader
    await cluster.write(znodes.LEADER, content(leader))
    if content is not _absurd:
        await cluster.until(lambda: _refused(cluster, znodes.LEADER))
        assert agent.app.answering.leader is None
        assert agent.metric("loadmanager_malformed_content_total", kind="leader") == 1
    await cluster.until(lambda: len(cluster.service.epochs) == 2, within_s=5.0)
    assert leader.alive
    await cluster.move_surely(bundles[0], agent.host)
    await cluster.until(lambda: cluster.servers(bundles[0]) == [agent.host])
    await cluster.settled(bundles)


@story(leader={"round_interval_s": 30.0})
async def test_no_lock_is_taken_while_orders_are_refused(cluster: Cluster) -> None:
    agent, bundles = await _serving(cluster)
    before = dict(agent.host.serving)
    await cluster.write(znodes.orders(agent.host.name), encode_orders(Orders(2**62)))
    await cluster.until(lambda: reasons(agent), within_s=1.0)
    # What it owned it keeps; after a session it takes nothing by orders that stand no more.
    assert agent.host.serving == before
    agent.coordination.expire()
    await asyncio.sleep(2.0)
    locks = cluster.lock_sessions()
    session_id = agent.coordination.session.session_id
    assert session_id not in locks.values()
    await cluster.until(lambda: not reasons(agent), within_s=61.0)
    await cluster.settled(bundles)
