"""What clients see when their bundle comes, goes, is cut, or loses its lease."""

from collections.abc import Callable

import pytest
from fake_sidecar import FakeSidecar, holds
from pulsar_wire import BUNDLE, House, Wire
from waiting import eventually

from loadmanager.core.ids import BundleId, TopicName, parse_topic
from tests.testbed.pulsar_protocol.fields import Command
from tests.testbed.pulsar_protocol.protocol import UNASKED, ServerError

Opening = Callable[..., House]
ASKED = {"topic": "t", "subscription": "s", "sub_type": 0}
HALVES = (
    BundleId("public/default/0x00000000_0x80000000"),
    BundleId("public/default/0x80000000_0xffffffff"),
)


@pytest.fixture
async def pair(opening: Opening, sidecar: FakeSidecar) -> tuple[House, House]:
    """Return two brokers; the first serves, and the sidecar says so."""
    first, second = (opening(sidecar_url=sidecar.url) for _ in range(2))
    for one in (first, second):
        one.renew()
    first.load(5)
    sidecar.owners = {BUNDLE: first.url}
    return first, second


async def connected(house: House, topic: str = "t") -> Wire:
    wire = await house.client()
    await wire.subscribe(topic=topic)
    await wire.create(topic=topic)
    return wire


async def test_closed_clients_are_told_the_new_owner_and_find_all_of_it_there(
    pair: tuple[House, House], sidecar: FakeSidecar
) -> None:
    first, second = pair
    wire = await connected(first)
    for number in range(3):
        await wire.publish(b"%d" % number)
    _, _, message_id = await wire.message()
    wire.ack(message_id)
    await wire.settled()
    sidecar.owners[BUNDLE] = second.url
    await first.unload(5)
    producer = await wire.answer(Command.CLOSE_PRODUCER)
    assert (producer.assigned_broker_url, producer.request_id) == (second.url, UNASKED)
    assert (await wire.answer(Command.CLOSE_CONSUMER)).assigned_broker_url == second.url
    there = await second.client()
    there.tell(Command.SUBSCRIBE, **ASKED, consumer_id=1, request_id=2)
    await there.settled()
    assert there.kept == []
    second.load(6)
    await there.answer(Command.SUCCESS)
    there.tell(Command.FLOW, consumer_id=1, message_permits=10)
    assert [(await there.message())[1] for _ in range(2)] == [b"1", b"2"]


async def test_what_is_sent_after_the_unload_is_neither_kept_nor_acknowledged(
    pair: tuple[House, House],
) -> None:
    first, second = pair
    wire = await connected(first)
    await first.unload(5)
    wire.send(b"late")
    await wire.settled()
    assert not [one for one, _, _ in wire.kept if one is Command.SEND_RECEIPT]
    second.load(6)
    there = await second.client()
    await there.subscribe(2, name="other", initial_position=1)
    await there.create()
    await there.publish(b"next")
    assert (await there.message())[1] == b"next"


async def test_clients_are_told_who_is_named_with_the_unload_and_nobody_is_asked(
    pair: tuple[House, House], sidecar: FakeSidecar
) -> None:
    first, second = pair
    wire = await connected(first)
    await first.unload(5, next_owner_url=second.url)
    assert (await wire.answer(Command.CLOSE_PRODUCER)).assigned_broker_url == second.url
    assert (await wire.answer(Command.CLOSE_CONSUMER)).assigned_broker_url == second.url
    assert sidecar.asked == 0


async def test_the_last_message_is_acknowledged_before_its_producer_is_closed(
    opening: Opening,
) -> None:
    house = opening(cpu_s_per_message=0.3)
    house.renew()
    house.load(5)
    wire = await connected(house)
    wire.send(b"last")
    (served,) = house.broker._serving
    await eventually(lambda: served.in_service)
    await house.unload(5, next_owner_url="pulsar://next:6650")
    await wire.answer(Command.CLOSE_PRODUCER)
    assert [one for one, _, _ in wire.kept if one is Command.SEND_RECEIPT]


async def test_a_sidecar_that_still_names_this_broker_is_asked_again(
    pair: tuple[House, House], sidecar: FakeSidecar
) -> None:
    first, second = pair
    wire = await connected(first)

    def learn() -> None:
        if sidecar.asked == 3:
            sidecar.owners[BUNDLE] = second.url

    sidecar.on_question = learn
    await first.unload(5)
    assert (await wire.answer(Command.CLOSE_PRODUCER)).assigned_broker_url == second.url
    assert sidecar.asked == 3


async def test_one_question_is_enough_for_all_topics_of_a_bundle(
    pair: tuple[House, House], sidecar: FakeSidecar
) -> None:
    first, second = pair
    wires = [await connected(first, f"t{number}") for number in range(8)]
    sidecar.owners[BUNDLE] = second.url
    await first.unload(5)
    for wire in wires:
        assert (await wire.answer(Command.CLOSE_PRODUCER)).assigned_broker_url == second.url
        assert (await wire.answer(Command.CLOSE_CONSUMER)).assigned_broker_url == second.url
    assert sidecar.asked == 1


async def test_topics_of_a_bundle_that_was_cut_are_told_the_owner_of_their_half(
    pair: tuple[House, House], sidecar: FakeSidecar
) -> None:
    first, second = pair
    names = [f"t{number}" for number in range(8)]
    wires = {name: await connected(first, name) for name in names}
    third = "pulsar://elsewhere:6650"
    sidecar.owners = {HALVES[0]: second.url, HALVES[1]: third}
    await first.unload(5)
    told = {name: await wire.answer(Command.CLOSE_PRODUCER) for name, wire in wires.items()}
    expected = {name: second.url if holds(HALVES[0], topic(name)) else third for name in names}
    assert {name: one.assigned_broker_url for name, one in told.items()} == expected
    assert sidecar.asked == 2


@pytest.mark.parametrize("reachable", [False, True])
async def test_without_an_answer_clients_are_closed_all_the_same_and_look_up(
    opening: Opening, sidecar: FakeSidecar, *, reachable: bool
) -> None:
    house = opening(sidecar_url=sidecar.url if reachable else "http://127.0.0.1:1")
    house.renew()
    house.load(5)
    wire = await connected(house)
    await house.unload(5)
    assert not (await wire.answer(Command.CLOSE_PRODUCER)).HasField("assigned_broker_url")
    assert not (await wire.answer(Command.CLOSE_CONSUMER)).HasField("assigned_broker_url")


async def test_a_broker_without_a_sidecar_closes_at_once(house: House) -> None:
    wire = await connected(house)
    await house.unload(5)
    assert not (await wire.answer(Command.CLOSE_PRODUCER)).HasField("assigned_broker_url")


async def test_a_split_on_the_same_broker_disturbs_nobody(house: House) -> None:
    wires = {name: await connected(house, name) for name in ("t0", "t1", "t2", "t3")}
    for token, half in enumerate(HALVES, 6):
        house.load(token, half)
    await house.unload(5)
    for number, wire in enumerate(wires.values()):
        await wire.publish(b"x", number=number)
        await wire.message()
        assert wire.kept == []
    bundles = house.broker.stats().bundles
    assert sum(one.producers for one in bundles.values()) == 4
    for half in HALVES:
        inside = [name for name in wires if holds(half, topic(name))]
        assert (bundles[half].producers, bundles[half].consumers) == (len(inside), len(inside))


async def test_a_lost_lease_ends_everything_at_once(opening: Opening) -> None:
    now_s = 100.0
    house = opening(clock_s=lambda: now_s)
    house.renew(10.0)
    house.load(5)
    wire = await connected(house)
    await wire.publish(b"before")
    now_s = 110.0
    wire.send(b"after")
    assert not (await wire.answer(Command.CLOSE_PRODUCER)).HasField("assigned_broker_url")
    await wire.answer(Command.CLOSE_CONSUMER)
    await wire.settled()
    assert not [one for one, _, _ in wire.kept if one is Command.SEND_RECEIPT]


async def test_nothing_is_delivered_under_a_lost_lease(opening: Opening) -> None:
    now_s = 100.0
    house = opening(clock_s=lambda: now_s)
    house.renew(10.0)
    house.load(5)
    wire = await house.client()
    await wire.subscribe(permits=0)
    await wire.create()
    await wire.publish(b"x")
    now_s = 110.0
    wire.tell(Command.FLOW, consumer_id=1, message_permits=10)
    await wire.answer(Command.CLOSE_CONSUMER)
    await wire.settled()
    assert not [one for one, _, _ in wire.kept if one is Command.MESSAGE]


async def test_a_log_that_a_newer_owner_opened_closes_the_topic_here(
    pair: tuple[House, House],
) -> None:
    """Two brokers that both think they serve: the ledger decides."""
    first, second = pair
    wire = await connected(first)
    await wire.publish(b"1")
    second.load(6)
    there = await second.client()
    await there.subscribe(permits=0)
    wire.send(b"2")
    await wire.answer(Command.CLOSE_PRODUCER)
    await wire.settled()
    assert not [one for one, _, _ in wire.kept if one is Command.SEND_RECEIPT]
    there.tell(Command.FLOW, consumer_id=1, message_permits=10)
    assert (await there.message())[1] == b"1"
    await there.settled()
    assert not [one for one, _, _ in there.kept if one is Command.MESSAGE]


async def test_a_topic_that_does_not_come_is_refused_so_that_the_client_looks_it_up(
    opening: Opening,
) -> None:
    house = opening(hold_s=0.05)
    house.renew()
    wire = await house.client()
    wire.tell(Command.PRODUCER, topic="t", producer_id=1, request_id=1)
    assert (await wire.answer(Command.ERROR)).error == ServerError.SERVICE_NOT_READY
    wire.tell(Command.SUBSCRIBE, **ASKED, consumer_id=1, request_id=2)
    assert (await wire.answer(Command.ERROR)).error == ServerError.SERVICE_NOT_READY


async def test_a_client_that_gives_up_while_it_is_held_leaves_nothing_behind(
    opening: Opening,
) -> None:
    house = opening()
    house.renew()
    wire = await house.client()
    wire.tell(Command.PRODUCER, topic="t", producer_id=1, request_id=1)
    wire.tell(Command.SUBSCRIBE, **ASKED, consumer_id=1, request_id=2)
    wire.tell(Command.CLOSE_PRODUCER, producer_id=1, request_id=3)
    wire.tell(Command.CLOSE_CONSUMER, consumer_id=1, request_id=4)
    assert {(await wire.answer(Command.SUCCESS)).request_id for _ in range(2)} == {3, 4}
    house.load(5)
    assert {(await wire.answer(Command.ERROR)).request_id for _ in range(2)} == {1, 2}
    assert house.broker.stats().bundles[BUNDLE].producers == 0


async def test_a_topic_that_is_full_takes_producers_again_once_it_is_consumed(
    opening: Opening,
) -> None:
    house = opening(max_log_bytes=20_000)
    house.renew()
    house.load(5)
    wire = await house.client()
    await wire.subscribe()
    await wire.create()
    for _ in range(2):
        await wire.publish(b"x" * 9_000)
    wire.send(b"x" * 9_000)
    await wire.answer(Command.CLOSE_PRODUCER)
    wire.tell(Command.PRODUCER, topic="t", producer_id=2, request_id=1)
    assert (await wire.answer(Command.ERROR)).error == ServerError.BACKLOG_QUOTA


async def test_a_broker_that_stops_cuts_its_clients_off(house: House) -> None:
    wire = await connected(house)
    await house.leave()
    await wire.closed()


async def test_a_topic_nobody_uses_is_closed_and_opened_again_with_all_it_had(
    opening: Opening,
) -> None:
    house = opening(idle_s=0.0)
    house.renew()
    house.load(5)
    wire = await connected(house)
    await wire.publish(b"kept")
    wire.tell(Command.CLOSE_PRODUCER, producer_id=1, request_id=1)
    wire.tell(Command.CLOSE_CONSUMER, consumer_id=1, request_id=2)
    await eventually(lambda: not house.server._topics._open)
    await wire.answer(Command.SUCCESS)
    await wire.answer(Command.SUCCESS)
    await wire.subscribe(3)
    assert (await wire.message())[1] == b"kept"


async def test_acknowledgements_are_written_down_soon(house: House, opening: Opening) -> None:
    """A killed broker forgets a moment of them at most: those messages come again."""
    wire = await connected(house)
    for number in range(3):
        await wire.publish(b"%d" % number)
    for message in [await wire.message() for _ in range(2)]:
        wire.ack(message[2])
    await wire.settled()
    (served,) = house.server._topics._open.values()
    await eventually(lambda: not served.subscriptions["s"].dirty)
    other = opening()
    other.renew()
    other.load(6)
    there = await other.client()
    await there.subscribe()
    assert (await there.message())[1] == b"2"


def topic(name: str) -> TopicName:
    return parse_topic(name)
