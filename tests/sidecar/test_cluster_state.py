import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count

import pytest
from stories import in_virtual_time, story
from structlog.testing import capture_logs
from waiting import eventually

from loadmanager.common.cluster_key import KEY_BYTES, ClusterKey, key_of_cluster, new_key
from loadmanager.common.subscriptions import Subscriptions
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId, BundleId, parse_broker, parse_bundle
from loadmanager.core.orders import encode_owned
from loadmanager.ports.coordination import Connection, Coordination
from tests.testbed.faults.cluster import Cluster
from tests.testbed.faults.virtual_time import VirtualClock
from tests.testbed.memory import MemoryCoordination, MemoryService

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


def drawn() -> Callable[[], bytes]:
    numbers: Iterator[int] = count(1)
    return lambda: next(numbers).to_bytes(KEY_BYTES, "big")


@asynccontextmanager
async def connected(service: MemoryService) -> AsyncIterator[MemoryCoordination]:
    session = MemoryCoordination(service)
    await session.start()
    await eventually(lambda: session.session.connection is Connection.CONNECTED)
    try:
        yield session
    finally:
        await session.close()


@asynccontextmanager
async def watched(
    coordination: Coordination, make: Callable[[], bytes]
) -> AsyncIterator[ClusterKey]:
    key = ClusterKey(coordination, VirtualClock(), make)
    running = asyncio.ensure_future(key.run())
    try:
        yield key
    finally:
        running.cancel()
        await asyncio.wait({running})


@in_virtual_time
async def test_the_first_sidecar_makes_the_key_and_all_have_the_same() -> None:
    service, make = MemoryService(), drawn()
    async with (
        connected(service) as one,
        connected(service) as two,
        watched(one, make) as first,
        watched(two, make) as second,
    ):
        assert first.value is None
        await eventually(lambda: first.value is not None and second.value is not None)
        assert first.value == second.value == service.dump()[znodes.KEY].data
        async with connected(service) as late, watched(late, make) as third:
            await eventually(lambda: third.value is not None)
            assert third.value == first.value


@in_virtual_time
async def test_a_replaced_key_counts_and_a_deleted_one_is_made_again() -> None:
    service, make = MemoryService(), drawn()
    async with (
        connected(service) as one,
        connected(service) as two,
        watched(one, make) as first,
        watched(two, make) as second,
    ):
        await eventually(lambda: first.value is not None)
        await one.set(znodes.KEY, b"k" * 48)
        await eventually(lambda: first.value == second.value == b"k" * 48)
        await one.delete(znodes.KEY)
        await eventually(lambda: first.value not in {None, b"k" * 48}, within_s=5.0)
        await eventually(lambda: second.value == first.value, within_s=5.0)


@in_virtual_time
async def test_a_key_deleted_before_anybody_saw_it_is_made_again() -> None:
    service = MemoryService()
    async with connected(service) as one, connected(service) as operator:
        make = drawn()
        async with watched(one, make) as key:
            for _ in range(20):
                if znodes.KEY in service.dump():
                    await operator.delete(znodes.KEY)
                await asyncio.sleep(0)
            await eventually(lambda: key.value is not None, within_s=40.0)
            assert service.dump()[znodes.KEY].data == key.value


@pytest.mark.parametrize("content", [b"", b"k" * 31, b"k" * 5000])
@in_virtual_time
async def test_what_is_no_key_is_told_and_left_until_it_is_replaced(content: bytes) -> None:
    service = MemoryService()
    async with connected(service) as one:
        await one.create(znodes.KEY, content)
        with pytest.raises(MalformedContent, match="expected a key of 32 to 4096 bytes"):
            await key_of_cluster(one)
        with capture_logs() as logs:
            async with watched(one, drawn()) as key:
                await asyncio.sleep(65.0)
                assert key.value is None
                assert service.dump()[znodes.KEY].data == content
                await one.set(znodes.KEY, b"k" * 32)
                await eventually(lambda: key.value == b"k" * 32, within_s=5.0)
        told = [each for each in logs if each["event"] == "znode.content.refused"]
        assert [each["path"] for each in told] == [znodes.KEY]


@in_virtual_time
async def test_an_outage_leaves_the_key_that_was_known() -> None:
    service = MemoryService()
    async with connected(service) as one, connected(service) as two, watched(one, drawn()) as key:
        await eventually(lambda: key.value is not None)
        before = key.value
        one.suspend()
        await two.set(znodes.KEY, b"k" * 32)
        await asyncio.sleep(5.0)
        assert key.value == before
        one.reconnect()
        await eventually(lambda: key.value == b"k" * 32)


def test_keys_are_random() -> None:
    assert len(new_key()) == KEY_BYTES
    assert new_key() != new_key()
