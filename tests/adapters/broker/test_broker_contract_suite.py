"""What every `BrokerControl` of an in-memory broker promises: in process and over HTTP."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from loadmanager.adapters.broker.http_control import HttpBrokerControl
from loadmanager.core.ids import TopicName, parse_bundle, parse_topic, topic_from_parts
from loadmanager.core.load import BundleStats
from loadmanager.core.rates import Rates
from loadmanager.ports.broker import BrokerControl, BrokerRefused, BrokerState, StaleAgent
from loadmanager.reference_broker.changes import Accepted, PublishRefused
from loadmanager.reference_broker.memory_broker import MemoryBroker, Ticket
from tests.testbed.in_process import InProcessBroker

LOWER = parse_bundle("t/n/0x00000000_0x80000000")
UPPER = parse_bundle("t/n/0x80000000_0xffffffff")
WHOLE = parse_bundle("a-b=c.d:e/n_1/0x00000000_0xffffffff")
TOPIC = parse_topic("persistent://a-b=c.d:e/n_1/orders")
# A czxid of a ZooKeeper that has elected often: beyond 2**53, where doubles lose count.
EPOCH = 2**60 + 1

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


@dataclass(slots=True)
class Pair:
    """A control and the broker behind it."""

    control: BrokerControl
    broker: MemoryBroker

    async def lease(self, until_s: float) -> BrokerState:
        """Extend the lease by the clock that the broker tells now."""
        told = await self.control.renew_lease(agent_epoch=EPOCH, until_s=None, incarnation=None)
        return await self.control.renew_lease(
            agent_epoch=EPOCH, until_s=until_s, incarnation=told.incarnation
        )

    def takes(self, topic: TopicName) -> bool:
        """Publish one message of 100 bytes and tell whether it was taken."""
        ticket = self.broker.begin_publish(topic)
        if isinstance(ticket, PublishRefused):
            return False
        outcome = self.broker.finish_publish(ticket, producer="p", payload_bytes=100)
        return isinstance(outcome, Accepted)


@pytest.fixture(params=["in_process", "http"])
async def pair(
    request: pytest.FixtureRequest, clock: Callable[[], float], serve_broker: Any
) -> AsyncIterator[Pair]:
    if request.param == "in_process":
        fake = InProcessBroker(clock)
        yield Pair(fake, fake.process)
        return
    async with serve_broker(clock) as served:
        control = HttpBrokerControl(served.url, timeout_s=30.0)
        yield Pair(control, served.running)
        await control.close()


async def load(pair: Pair, until_s: float = 110.0) -> None:
    await pair.lease(until_s=until_s)
    await pair.control.load(WHOLE, agent_epoch=EPOCH, fencing_token=EPOCH + 1)


async def test_a_fresh_broker_tells_its_clock_and_serves_nothing(pair: Pair) -> None:
    state = await pair.control.renew_lease(agent_epoch=EPOCH, until_s=None, incarnation=None)
    assert state.clock_s == 100.0
    assert state.serving == {}
    assert state.incarnation
    assert (await pair.control.stats()).bundles == {}


async def test_a_broker_that_works_says_so(pair: Pair) -> None:
    await pair.control.health(30.0)


async def test_a_load_makes_it_serve_under_that_token(pair: Pair) -> None:
    await load(pair)
    state = await pair.control.renew_lease(agent_epoch=EPOCH, until_s=None, incarnation=None)
    assert state.serving == {WHOLE: EPOCH + 1}
    assert pair.takes(TOPIC)


async def test_loading_twice_is_fine(pair: Pair) -> None:
    await load(pair)
    await load(pair)
    assert pair.takes(TOPIC)


async def test_traffic_is_told_by_bundle(pair: Pair, clock: Any) -> None:
    await load(pair)
    clock.now_s = 101.0
    assert pair.takes(TOPIC)
    clock.now_s = 102.0
    stats = await pair.control.stats()
    assert stats.window_s == 2.0
    # Slots of 0.2 s: those from 100.2 on cover 1.8 s up to now.
    rate = pytest.approx(1 / 1.8)
    assert stats.bundles.keys() == {WHOLE}
    assert stats.bundles[WHOLE].msgs_in_per_s == rate
    assert stats.bundles[WHOLE].bytes_in_per_s / 100 == rate
    assert replace(stats.bundles[WHOLE], msgs_in_per_s=0, bytes_in_per_s=0) == BundleStats(
        topics=1, producers=1
    )


async def test_the_topics_of_a_bundle_are_told_with_their_rates(pair: Pair, clock: Any) -> None:
    await load(pair)
    awkward = topic_from_parts("non-persistent", "a-b=c.d:e", "n_1", 'a/../"b"? ä%2F\n')
    clock.now_s = 101.0
    for topic in (TOPIC, TOPIC, awkward):
        assert pair.takes(topic)
    clock.now_s = 102.0
    topics = await pair.control.topics(WHOLE)
    # Slots of 0.2 s: those from 100.2 on cover 1.8 s up to now.
    assert topics.keys() == {TOPIC, awkward}
    assert topics[TOPIC].msgs_in_per_s == pytest.approx(2 / 1.8)
    assert topics[TOPIC].bytes_in_per_s == pytest.approx(200 / 1.8)
    assert topics[awkward].msgs_per_s == pytest.approx(1 / 1.8)
    assert topics[awkward].bytes_per_s == pytest.approx(100 / 1.8)
    clock.now_s = 105.0
    assert (await pair.control.topics(WHOLE))[TOPIC] == Rates()


async def test_of_what_is_not_served_no_topics_are_told(pair: Pair, clock: Any) -> None:
    with pytest.raises(BrokerRefused, match=f"{WHOLE} is not served here") as refused:
        await pair.control.topics(WHOLE)
    assert not isinstance(refused.value, StaleAgent)
    await load(pair)
    assert await pair.control.topics(WHOLE) == {}
    clock.now_s = 110.0
    with pytest.raises(BrokerRefused, match="is not served here"):
        await pair.control.topics(WHOLE)


async def test_an_unload_ends_it(pair: Pair) -> None:
    await load(pair)
    await pair.control.unload(WHOLE, agent_epoch=EPOCH, fencing_token=EPOCH + 1)
    assert not pair.takes(TOPIC)
    state = await pair.control.renew_lease(agent_epoch=EPOCH, until_s=None, incarnation=None)
    assert state.serving == {}


async def test_unloading_what_is_not_loaded_is_fine(pair: Pair) -> None:
    await pair.control.unload(WHOLE, agent_epoch=EPOCH, fencing_token=1)


async def test_a_load_that_comes_after_the_unload_of_its_token_is_refused(pair: Pair) -> None:
    await pair.lease(until_s=110.0)
    await pair.control.unload(WHOLE, agent_epoch=EPOCH, fencing_token=EPOCH + 1)
    with pytest.raises(BrokerRefused, match="is over") as refused:
        await pair.control.load(WHOLE, agent_epoch=EPOCH, fencing_token=EPOCH + 1)
    assert not isinstance(refused.value, StaleAgent)
    assert not pair.takes(TOPIC)
    await pair.control.load(WHOLE, agent_epoch=EPOCH, fencing_token=EPOCH + 2)
    assert pair.takes(TOPIC)


async def test_an_unload_of_an_older_grant_leaves_the_newer_one(pair: Pair) -> None:
    await load(pair)
    with pytest.raises(BrokerRefused, match=f"{EPOCH} is older than {EPOCH + 1}") as refused:
        await pair.control.unload(WHOLE, agent_epoch=EPOCH, fencing_token=EPOCH)
    assert not isinstance(refused.value, StaleAgent)
    assert pair.takes(TOPIC)


async def test_what_a_lost_lease_ended_may_be_loaded_again_with_its_token(
    pair: Pair, clock: Any
) -> None:
    await load(pair, until_s=110.0)
    clock.now_s = 111.0
    await load(pair, until_s=120.0)
    assert pair.takes(TOPIC)


async def test_an_unload_returns_when_no_request_is_in_service_any_more(
    pair: Pair, eventually: Eventually
) -> None:
    await load(pair)
    ticket = pair.broker.begin_publish(TOPIC)
    assert isinstance(ticket, Ticket)
    unloading = asyncio.create_task(
        pair.control.unload(WHOLE, agent_epoch=EPOCH, fencing_token=EPOCH + 1)
    )
    await eventually(lambda: not pair.takes(TOPIC))
    assert not unloading.done()
    pair.broker.abandon(ticket)
    await unloading


async def test_a_lease_that_runs_out_ends_everything(pair: Pair, clock: Any) -> None:
    await load(pair, until_s=110.0)
    clock.now_s = 110.0
    assert not pair.takes(TOPIC)
    state = await pair.lease(until_s=120.0)
    assert state.serving == {}


async def test_a_lease_that_runs_out_ends_an_unload_too(
    pair: Pair, clock: Any, eventually: Eventually
) -> None:
    await load(pair, until_s=110.0)
    ticket = pair.broker.begin_publish(TOPIC)
    assert isinstance(ticket, Ticket)
    unloading = asyncio.create_task(
        pair.control.unload(WHOLE, agent_epoch=EPOCH, fencing_token=EPOCH + 1)
    )
    await eventually(lambda: not pair.takes(TOPIC))
    clock.now_s = 111.0
    await pair.control.stats()
    await unloading
    outcome = pair.broker.finish_publish(ticket, producer="p", payload_bytes=1)
    assert isinstance(outcome, PublishRefused)


@pytest.mark.parametrize("incarnation", [None, "another", "x" * 200])
async def test_a_lease_by_the_clock_of_another_process_is_none(
    pair: Pair, incarnation: str | None
) -> None:
    state = await pair.control.renew_lease(agent_epoch=EPOCH, until_s=1e9, incarnation=incarnation)
    assert (state.clock_s, state.serving) == (100.0, {})
    with pytest.raises(BrokerRefused, match="no valid lease"):
        await pair.control.load(WHOLE, agent_epoch=EPOCH, fencing_token=1)


async def test_a_renewal_by_another_clock_leaves_the_lease_as_it_is(pair: Pair, clock: Any) -> None:
    await load(pair, until_s=110.0)
    state = await pair.control.renew_lease(agent_epoch=EPOCH, until_s=1e9, incarnation="another")
    assert state.serving == {WHOLE: EPOCH + 1}
    clock.now_s = 110.0
    assert not pair.takes(TOPIC)


@pytest.mark.parametrize("incarnation", ["", "x" * 201])
async def test_an_incarnation_that_no_broker_may_tell_is_a_mistake_of_the_caller(
    pair: Pair, incarnation: str
) -> None:
    with pytest.raises(ValueError, match="incarnation"):
        await pair.control.renew_lease(agent_epoch=EPOCH, until_s=1.0, incarnation=incarnation)


async def test_an_older_agent_hears_that_it_is_stale(pair: Pair) -> None:
    await pair.control.renew_lease(agent_epoch=EPOCH, until_s=None, incarnation=None)
    with pytest.raises(StaleAgent, match=f"agent epoch {EPOCH - 1} is older than {EPOCH}"):
        await pair.control.renew_lease(agent_epoch=EPOCH - 1, until_s=None, incarnation=None)
    with pytest.raises(StaleAgent):
        await pair.control.load(WHOLE, agent_epoch=EPOCH - 1, fencing_token=1)
    with pytest.raises(StaleAgent):
        await pair.control.unload(WHOLE, agent_epoch=EPOCH - 1, fencing_token=1)


async def test_an_older_fencing_token_is_refused(pair: Pair) -> None:
    await load(pair)
    with pytest.raises(BrokerRefused, match="fencing token 5 is over") as refused:
        await pair.control.load(WHOLE, agent_epoch=EPOCH, fencing_token=5)
    assert not isinstance(refused.value, StaleAgent)
    assert pair.takes(TOPIC)


async def test_without_a_lease_nothing_is_loaded(pair: Pair) -> None:
    with pytest.raises(BrokerRefused, match="no valid lease"):
        await pair.control.load(WHOLE, agent_epoch=EPOCH, fencing_token=1)


async def test_bundles_are_served_side_by_side(pair: Pair) -> None:
    await pair.lease(until_s=110.0)
    await pair.control.load(LOWER, agent_epoch=EPOCH, fencing_token=1)
    await pair.control.load(UPPER, agent_epoch=EPOCH, fencing_token=2)
    await pair.control.unload(LOWER, agent_epoch=EPOCH, fencing_token=1)
    state = await pair.control.renew_lease(agent_epoch=EPOCH, until_s=None, incarnation=None)
    assert state.serving == {UPPER: 2}


@pytest.mark.parametrize("until_s", [math.nan, math.inf, -1.0])
async def test_a_lease_until_no_time_at_all_is_a_mistake_of_the_caller(
    pair: Pair, until_s: float
) -> None:
    with pytest.raises(ValueError, match="until_seconds"):
        await pair.lease(until_s=until_s)


@pytest.mark.parametrize("number", [-1, 2**63])
async def test_epochs_and_tokens_have_63_bits(pair: Pair, number: int) -> None:
    with pytest.raises(ValueError, match="agent_epoch"):
        await pair.control.load(WHOLE, agent_epoch=number, fencing_token=1)
    with pytest.raises(ValueError, match="fencing_token"):
        await pair.control.load(WHOLE, agent_epoch=EPOCH, fencing_token=number)
    with pytest.raises(ValueError, match="agent_epoch"):
        await pair.control.unload(WHOLE, agent_epoch=number, fencing_token=1)
    with pytest.raises(ValueError, match="fencing_token"):
        await pair.control.unload(WHOLE, agent_epoch=EPOCH, fencing_token=number)
