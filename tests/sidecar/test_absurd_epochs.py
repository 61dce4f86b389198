"""Epochs that no leader of this service can have: not obeyed, told, and put right."""

import asyncio

import pytest
from stories import place_all, story

from loadmanager.core import znodes
from loadmanager.core.ids import BundleId
from loadmanager.core.orders import Orders, encode_orders
from loadmanager.core.wire.records import LeaderRecord, encode_leader
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import Cluster

TOO_LARGE = "1" + 400 * "0"


async def _serving(cluster: Cluster) -> tuple[Agent, list[BundleId]]:
    boundaries = await cluster.make_namespace(6)
    await place_all(cluster, boundaries)
    agent = next(one for one in cluster.living if not one.leads and one.host.serving)
    return agent, list(boundaries.bundles)


def _reasons(agent: Agent) -> str:
    return "; ".join(agent.app.answering.readiness().reasons)


@pytest.mark.parametrize("epoch", [2**62, 2**63 - 1])
def test_orders_of_an_epoch_to_come_are_refused_told_and_written_again(epoch: int) -> None:
    @story(leader={"round_interval_s": 30.0})
    async def tell(cluster: Cluster) -> None:
        agent, bundles = await _serving(cluster)
        served = dict(agent.host.serving)
        await cluster.write(znodes.orders(agent.host.name), encode_orders(Orders(epoch)))
        await cluster.until(lambda: "orders" in _reasons(agent), within_s=1.0)
        assert str(epoch) in _reasons(agent)
        assert agent.metric("loadmanager_orders_refused") == 1
        assert agent.host.serving == served
        (refused, *_) = cluster.warnings("orders.epoch.refused")
        assert (refused["epoch"], refused["newest"]) == (epoch, 1)
        await cluster.until(lambda: not _reasons(agent), within_s=61.0)
        assert agent.metric("loadmanager_orders_refused") == 0
        assert agent.host.serving == served
        # Orders that came after them are obeyed.
        await cluster.move(bundles[0], agent.host)
        await cluster.until(lambda: cluster.servers(bundles[0]) == [agent.host])
        await cluster.settled(bundles)

    tell()


@story(leader={"round_interval_s": 10.0})
async def test_the_same_orders_with_an_epoch_to_come_are_written_again_too(
    cluster: Cluster,
) -> None:
    agent, bundles = await _serving(cluster)
    orders = cluster.orders(agent.host)
    again = Orders(2**62, orders.bundles, orders.handovers, orders.splits)
    await cluster.write(znodes.orders(agent.host.name), encode_orders(again))
    await cluster.until(lambda: _reasons(agent), within_s=1.0)
    await cluster.until(lambda: not _reasons(agent), within_s=21.0)
    assert cluster.orders(agent.host).epoch == 1
    await cluster.settled(bundles)


@story(leader={"round_interval_s": 10.0})
async def test_an_epoch_of_hundreds_of_digits_is_no_epoch(cluster: Cluster) -> None:
    agent, bundles = await _serving(cluster)
    content = b'{"epoch":' + TOO_LARGE.encode() + b',"bundles":{}}'
    await cluster.write(znodes.orders(agent.host.name), content)
    await cluster.until(lambda: "orders" in _reasons(agent), within_s=1.0)
    assert agent.metric("loadmanager_orders_refused") == 1
    await cluster.until(lambda: not _reasons(agent), within_s=21.0)
    await cluster.settled(bundles)


@story(leader={"round_interval_s": 300.0})
async def test_refused_orders_are_told_once_a_minute(cluster: Cluster) -> None:
    agent, _ = await _serving(cluster)
    for number in range(240):
        await cluster.write(znodes.orders(agent.host.name), encode_orders(Orders(2**62 + number)))
        await asyncio.sleep(0.5)
    assert 2 <= len(cluster.warnings("orders.epoch.refused")) <= 3


@story(1)
async def test_orders_with_the_epoch_of_the_present_leader_are_obeyed_by_a_late_sidecar(
    cluster: Cluster,
) -> None:
    """It never saw an epoch before it read its orders."""
    boundaries = await cluster.make_namespace(2)
    await place_all(cluster, boundaries)
    host = cluster.add_host()
    agent = cluster.start(host)
    await cluster.ready()
    await cluster.move(boundaries.bundles[0], host)
    await cluster.until(lambda: cluster.servers(boundaries.bundles[0]) == [host])
    assert not _reasons(agent)
    assert not cluster.warnings("orders.epoch.refused")


@story()
async def test_an_epoch_node_made_anew_is_told_and_its_leaders_are_obeyed(
    cluster: Cluster,
) -> None:
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
    assert not _reasons(agent)


@story()
async def test_a_leader_whose_node_got_an_absurd_epoch_is_elected_anew(cluster: Cluster) -> None:
    agent, bundles = await _serving(cluster)
    leader = cluster.leader
    identity = leader.context.identity
    record = LeaderRecord(
        broker=identity.broker,
        service_url=identity.urls.http_url,
        sidecar_url=identity.sidecar_url,
        instance=identity.instance,
        epoch=2**62,
    )
    await cluster.write(znodes.LEADER, encode_leader(record))
    await cluster.until(lambda: len(cluster.service.epochs) == 2, within_s=5.0)
    await cluster.move_surely(bundles[0], agent.host)
    await cluster.until(lambda: cluster.servers(bundles[0]) == [agent.host])
    await cluster.settled(bundles)


@pytest.mark.parametrize(
    "content", [b"{", b'{"loadManager":{"epoch":' + TOO_LARGE.encode() + b"}}"]
)
def test_a_leader_whose_node_cannot_be_read_is_elected_anew(content: bytes) -> None:
    @story()
    async def tell(cluster: Cluster) -> None:
        agent, bundles = await _serving(cluster)
        await cluster.write(znodes.LEADER, content)
        await cluster.until(lambda: len(cluster.service.epochs) == 2, within_s=5.0)
        await cluster.move_surely(bundles[0], agent.host)
        await cluster.until(lambda: cluster.servers(bundles[0]) == [agent.host])
        await cluster.settled(bundles)

    tell()


@story(leader={"round_interval_s": 30.0})
async def test_no_lock_is_taken_while_orders_are_refused(cluster: Cluster) -> None:
    agent, bundles = await _serving(cluster)
    served = dict(agent.host.serving)
    await cluster.write(znodes.orders(agent.host.name), encode_orders(Orders(2**62)))
    await cluster.until(lambda: _reasons(agent), within_s=1.0)
    # What it owned it keeps; after a session it takes nothing by orders that stand no more.
    assert agent.host.serving == served
    agent.coordination.expire()
    await asyncio.sleep(2.0)
    locks = cluster.lock_sessions()
    session_id = agent.coordination.session.session_id
    assert session_id not in locks.values()
    await cluster.until(lambda: not _reasons(agent), within_s=61.0)
    await cluster.settled(bundles)
