import asyncio

import pytest
from stories import in_virtual_time, story

from loadmanager.common.subscriptions import Subscriptions
from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId, parse_broker, parse_bundle
from loadmanager.core.orders import encode_owned
from tests.testbed.faults.cluster import Cluster

WHOLE = parse_bundle("acme/orders/0x00000000_0xffffffff")
FIRST, SECOND = parse_broker("one:8080"), parse_broker("two:8080")


async def _list(cluster: Cluster, broker: BrokerId, tokens: dict[BundleId, int | None]) -> None:
    await cluster.write(znodes.owned(broker), encode_owned(tokens))


def _holder(cluster: Cluster) -> tuple[str, int] | None:
    holding = cluster.agents[0].cluster_state.owners.get(WHOLE)
    return None if holding is None else (holding.broker, holding.fencing_token)


@story(1)
async def test_of_the_lists_with_a_bundle_the_latest_lock_is_believed(cluster: Cluster) -> None:
    await _list(cluster, SECOND, {WHOLE: 70})
    await cluster.until(lambda: _holder(cluster) == (SECOND, 70))
    assert cluster.agents[0].cluster_state.live_owner(WHOLE) is None  # It is not registered.
    await _list(cluster, FIRST, {WHOLE: 60})
    await asyncio.sleep(0.1)
    assert _holder(cluster) == (SECOND, 70)
    await _list(cluster, FIRST, {WHOLE: 80})
    await cluster.until(lambda: _holder(cluster) == (FIRST, 80))
    operator = await cluster.operator()
    await operator.delete(znodes.owned(FIRST))
    await cluster.until(lambda: _holder(cluster) == (SECOND, 70))
    await _list(cluster, SECOND, {})
    await cluster.until(lambda: _holder(cluster) is None)
    # A token that is not written is the list's own zxid.
    await _list(cluster, FIRST, {WHOLE: None})
    mzxid = cluster.service.dump()[znodes.owned(FIRST)].stat.mzxid
    await cluster.until(lambda: _holder(cluster) == (FIRST, mzxid))


@story(1)
async def test_a_picture_is_current_only_while_it_can_change(cluster: Cluster) -> None:
    (agent,) = cluster.agents
    assert agent.cluster_state.complete
    assert agent.cluster_state.current
    agent.coordination.suspend()
    assert agent.cluster_state.complete
    assert not agent.cluster_state.current


@story(2)
async def test_a_closed_picture_is_told_of_nothing(cluster: Cluster) -> None:
    cluster_state = cluster.agents[0].cluster_state
    await cluster.make_namespace(1)
    before = dict(cluster_state.brokers)
    cluster_state.close()
    await cluster.agents[1].leave()
    assert dict(cluster_state.brokers) == before


@in_virtual_time
async def test_a_change_wakes_waiters_and_calls_subscribers() -> None:
    changes, called = Subscriptions(), [0]

    def count() -> None:
        called[0] += 1

    changes.subscribe(count)
    first = asyncio.ensure_future(changes.wait(10.0))
    given_up = asyncio.ensure_future(changes.wait(10.0))
    await asyncio.sleep(1.0)
    given_up.cancel()
    changes.notify()
    assert await first
    assert not await changes.wait(1.0)
    changes.unsubscribe(count)
    changes.notify()
    assert called == [1]


async def test_a_subscriber_that_fails_keeps_the_change_from_no_other() -> None:
    changes, called, failed = Subscriptions(), [0], []

    def fail() -> None:
        raise ValueError("a defect")

    def count() -> None:
        called[0] += 1

    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    for callback in (fail, count):
        changes.subscribe(callback)
    changes.notify()
    assert (called, [str(one["exception"]) for one in failed]) == ([1], ["a defect"])


@in_virtual_time
async def test_who_is_cancelled_together_with_a_change_is_cancelled() -> None:
    changes = Subscriptions()
    waiting = asyncio.ensure_future(changes.wait(10.0))
    await asyncio.sleep(1.0)
    changes.notify()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
