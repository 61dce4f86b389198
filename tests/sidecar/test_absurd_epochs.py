"""Epochs that no leader of this service can have: not obeyed, told, and put right."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from stories import follower, served, story

from loadmanager.core import znodes
from loadmanager.core.ids import BundleId
from loadmanager.core.orders import Orders, encode_orders
from loadmanager.core.wire.records import LeaderRecord, encode_leader
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import Cluster

TOO_LARGE = "1" + 400 * "0"


async def _serving(cluster: Cluster) -> tuple[Agent, list[BundleId]]:
    boundaries = await served(cluster, 6)
    agent = follower(cluster)
    return agent, list(boundaries.bundles)


def _reasons(agent: Agent) -> str:
    return "; ".join(agent.app.answering.readiness().reasons)


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
    await cluster.until(lambda: "orders" in _reasons(agent), within_s=1.0)
    assert agent.metric("loadmanager_orders_refused") == 1
    assert agent.host.serving == before
    if epoch is not None:
        assert str(epoch) in _reasons(agent)
        (refused, *_) = cluster.warnings("orders.epoch.refused")
        assert (refused["epoch"], refused["newest"]) == (epoch, 1)
    await cluster.until(lambda: not _reasons(agent), within_s=21.0)
    assert agent.metric("loadmanager_orders_refused") == 0
    assert agent.host.serving == before
    assert cluster.orders(agent.host).epoch == 1
    # Orders that came after them are obeyed.
    await cluster.move(bundles[0], agent.host)
    await cluster.until(lambda: cluster.servers(bundles[0]) == [agent.host])
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
    boundaries = await served(cluster, 2)
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


@pytest.mark.parametrize("content", [_absurd, _unreadable, lambda _: b"{"])
@story()
async def test_a_leader_whose_node_got_an_absurd_epoch_or_garbage_is_elected_anew(
    cluster: Cluster, content: Callable[[Agent], bytes]
) -> None:
    agent, bundles = await _serving(cluster)
    await cluster.write(znodes.LEADER, content(cluster.leader))
    await cluster.until(lambda: len(cluster.service.epochs) == 2, within_s=5.0)
    await cluster.move_surely(bundles[0], agent.host)
    await cluster.until(lambda: cluster.servers(bundles[0]) == [agent.host])
    await cluster.settled(bundles)


@story(leader={"round_interval_s": 30.0})
async def test_no_lock_is_taken_while_orders_are_refused(cluster: Cluster) -> None:
    agent, bundles = await _serving(cluster)
    before = dict(agent.host.serving)
    await cluster.write(znodes.orders(agent.host.name), encode_orders(Orders(2**62)))
    await cluster.until(lambda: _reasons(agent), within_s=1.0)
    # What it owned it keeps; after a session it takes nothing by orders that stand no more.
    assert agent.host.serving == before
    agent.coordination.expire()
    await asyncio.sleep(2.0)
    locks = cluster.lock_sessions()
    session_id = agent.coordination.session.session_id
    assert session_id not in locks.values()
    await cluster.until(lambda: not _reasons(agent), within_s=61.0)
    await cluster.settled(bundles)
