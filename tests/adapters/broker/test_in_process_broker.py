import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from loadmanager.core.ids import parse_bundle, parse_topic
from loadmanager.demo.overlaps import overlaps
from loadmanager.ports.broker import BrokerRefused, BrokerUnreachable
from loadmanager.reference_broker.changes import Accepted, EndReason, PublishRefused
from tests.testbed.in_process import Fault, InProcessBroker

BUNDLE = parse_bundle("t/n/0x00000000_0xffffffff")
TOPIC = parse_topic("t/n/orders")


@pytest.fixture
def broker(clock: Callable[[], float]) -> InProcessBroker:
    return InProcessBroker(clock, process_id=42)


async def load(broker: InProcessBroker, until_s: float = 110.0) -> None:
    await broker.renew_lease(agent_epoch=1, until_s=until_s, incarnation=broker.incarnation)
    await broker.load(BUNDLE, agent_epoch=1, fencing_token=1)


async def test_it_tells_what_it_serves_and_takes_messages(broker: InProcessBroker) -> None:
    await load(broker)
    assert broker.serving == {BUNDLE: 1}
    assert isinstance(broker.publish(TOPIC), Accepted)
    assert isinstance(broker.publish(parse_topic("t/m/orders")), PublishRefused)
    assert (await broker.stats()).process_id == 42
    await broker.close()


async def test_commands_are_kept_in_their_order(broker: InProcessBroker) -> None:
    await load(broker)
    await broker.unload(BUNDLE, agent_epoch=1, fencing_token=1)
    await broker.stats()
    assert broker.commands == ["renew_lease", "load", "unload", "stats"]


@pytest.mark.parametrize(
    ("fault", "error", "done"),
    [
        (Fault.UNREACHABLE, BrokerUnreachable, False),
        (Fault.LOST_ANSWER, BrokerUnreachable, True),
        (Fault.LATE, BrokerUnreachable, False),
        (Fault.REFUSED, BrokerRefused, False),
        (Fault.GARBAGE, BrokerRefused, True),
    ],
)
async def test_a_fault_may_come_before_or_after_the_deed(
    broker: InProcessBroker, fault: Fault, error: type[Exception], done: bool
) -> None:
    await broker.renew_lease(agent_epoch=1, until_s=110.0, incarnation=broker.incarnation)
    broker.inject(fault)
    with pytest.raises(error, match=f"load: .*{fault}"):
        await broker.load(BUNDLE, agent_epoch=1, fencing_token=1)
    assert bool(broker.serving) is done


async def test_a_fault_hits_only_the_commands_it_names(broker: InProcessBroker) -> None:
    broker.inject(Fault.UNREACHABLE, "stats", "unload")
    await load(broker)
    with pytest.raises(BrokerUnreachable):
        await broker.stats()
    with pytest.raises(BrokerUnreachable):
        await broker.unload(BUNDLE, agent_epoch=1, fencing_token=1)
    broker.heal()
    await broker.stats()


async def test_a_fault_ends_after_its_number_of_times(broker: InProcessBroker) -> None:
    broker.inject(Fault.REFUSED, times=2)
    for _ in range(2):
        with pytest.raises(BrokerRefused):
            await broker.stats()
    await broker.stats()


async def test_a_hanging_command_goes_on_when_healed(
    broker: InProcessBroker, eventually: Any
) -> None:
    await broker.renew_lease(agent_epoch=1, until_s=110.0, incarnation=broker.incarnation)
    broker.inject(Fault.HANG, "load")
    loading = asyncio.create_task(broker.load(BUNDLE, agent_epoch=1, fencing_token=1))
    await eventually(lambda: "load" in broker.commands)
    assert not broker.serving
    broker.heal()
    await loading
    assert broker.serving == {BUNDLE: 1}


async def test_a_hanging_command_that_is_given_up_does_nothing(broker: InProcessBroker) -> None:
    broker.inject(Fault.HANG)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await load(broker)
    broker.heal()
    assert not broker.serving


async def test_a_late_command_is_done_when_healed_unless_it_is_refused_by_then(
    broker: InProcessBroker,
) -> None:
    await broker.renew_lease(agent_epoch=1, until_s=110.0, incarnation=broker.incarnation)
    for token in (1, 2):
        broker.inject(Fault.LATE, "load", times=1)
        with pytest.raises(BrokerUnreachable):
            await broker.load(BUNDLE, agent_epoch=1, fencing_token=token)
        if token == 1:
            broker.heal()
            assert broker.serving == {BUNDLE: 1}
    await broker.renew_lease(agent_epoch=2, until_s=None, incarnation=None)
    broker.heal()
    assert broker.serving == {BUNDLE: 1}


async def test_a_late_load_does_not_undo_the_unload_that_overtook_it(
    broker: InProcessBroker,
) -> None:
    await broker.renew_lease(agent_epoch=1, until_s=110.0, incarnation=broker.incarnation)
    broker.inject(Fault.LATE, "load")
    with pytest.raises(BrokerUnreachable):
        await broker.load(BUNDLE, agent_epoch=1, fencing_token=1)
    await broker.unload(BUNDLE, agent_epoch=1, fencing_token=1)
    broker.heal()
    assert not broker.serving


async def test_a_late_unload_does_not_end_the_grant_that_followed(
    broker: InProcessBroker,
) -> None:
    await load(broker)
    broker.inject(Fault.LATE, "unload")
    with pytest.raises(BrokerUnreachable):
        await broker.unload(BUNDLE, agent_epoch=1, fencing_token=1)
    await broker.load(BUNDLE, agent_epoch=1, fencing_token=2)
    broker.heal()
    assert broker.serving == {BUNDLE: 2}


async def test_a_late_command_is_lost_with_the_process_that_it_was_under_way_to(
    broker: InProcessBroker,
) -> None:
    await broker.renew_lease(agent_epoch=1, until_s=110.0, incarnation=broker.incarnation)
    broker.inject(Fault.LATE, "load")
    with pytest.raises(BrokerUnreachable):
        await broker.load(BUNDLE, agent_epoch=1, fencing_token=1)
    broker.restart()
    await broker.renew_lease(agent_epoch=1, until_s=110.0, incarnation=broker.incarnation)
    broker.heal()
    assert not broker.serving


async def test_a_hanging_command_is_lost_with_the_process_that_it_was_under_way_to(
    broker: InProcessBroker, eventually: Any
) -> None:
    broker.inject(Fault.HANG, "load")
    loading = asyncio.create_task(broker.load(BUNDLE, agent_epoch=1, fencing_token=1))
    await eventually(lambda: "load" in broker.commands)
    broker.restart()
    await broker.renew_lease(agent_epoch=1, until_s=110.0, incarnation=broker.incarnation)
    broker.heal()
    with pytest.raises(BrokerUnreachable, match="load: its process ended"):
        await loading
    assert not broker.serving


async def test_a_dead_broker_is_unreachable_and_serves_nothing(broker: InProcessBroker) -> None:
    await load(broker)
    broker.kill()
    assert broker.serving == {}
    with pytest.raises(BrokerUnreachable, match="dead"):
        await broker.stats()
    with pytest.raises(BrokerUnreachable, match="dead"):
        broker.publish(TOPIC)


async def test_a_restarted_broker_is_a_new_incarnation_that_has_seen_nothing(
    broker: InProcessBroker,
) -> None:
    before = await broker.renew_lease(agent_epoch=9, until_s=None, incarnation=None)
    broker.restart()
    after = await broker.renew_lease(agent_epoch=1, until_s=None, incarnation=None)
    assert before.incarnation != after.incarnation
    assert after.serving == {}


async def test_a_lease_meant_for_the_former_process_is_none_for_the_next(
    broker: InProcessBroker,
) -> None:
    former = await broker.renew_lease(agent_epoch=1, until_s=None, incarnation=None)
    broker.restart()
    told = await broker.renew_lease(agent_epoch=1, until_s=1e6, incarnation=former.incarnation)
    assert told.incarnation != former.incarnation
    with pytest.raises(BrokerRefused, match="no valid lease"):
        await broker.load(BUNDLE, agent_epoch=1, fencing_token=1)


async def test_intervals_tell_of_all_its_lives(broker: InProcessBroker, clock: Any) -> None:
    await load(broker)
    clock.now_s = 103.0
    broker.restart()
    clock.now_s = 104.0
    await load(broker, until_s=106.0)
    clock.now_s = 107.0
    assert [(one.start_s, one.end_s, one.why) for one in broker.intervals()] == [
        (100.0, 103.0, EndReason.NOT_RECORDED),
        (104.0, 106.0, EndReason.LEASE_LOST),
    ]
    broker.kill()
    assert len(broker.intervals()) == 2


async def test_two_brokers_with_one_bundle_are_found_out(
    broker: InProcessBroker, clock: Any
) -> None:
    other = InProcessBroker(clock, broker="other:8080")
    await load(broker)
    await load(other)
    clock.now_s = 101.0
    (overlap,) = overlaps([*broker.intervals(), *other.intervals()])
    assert (overlap.start_s, overlap.end_s) == (100.0, 101.0)
