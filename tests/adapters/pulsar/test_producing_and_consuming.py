"""Producing and consuming, frame by frame."""

import pytest
from pulsar_wire import BUNDLE, House, Wire, metadata

from tests.testbed.pulsar_protocol.fields import Command
from tests.testbed.pulsar_protocol.frames import encode_frame, encode_payload
from tests.testbed.pulsar_protocol.protocol import ServerError, SubscriptionType, encode

SHARED, FAILOVER = SubscriptionType.SHARED, SubscriptionType.FAILOVER


async def contents(wire: Wire, count: int) -> list[bytes]:
    return [(await wire.message())[1] for _ in range(count)]


async def refusal(wire: Wire, command: Command, **fields: object) -> tuple[ServerError, str]:
    wire.tell(command, **fields)
    error = await wire.answer(Command.ERROR)
    return ServerError(error.error), error.message


async def test_the_handshake_tells_version_and_largest_message(house: House) -> None:
    wire = await house.stranger()
    connected = await wire.shake_hands()
    assert connected.server_version == "loadmanager 1"
    assert (connected.protocol_version, connected.max_message_size) == (19, 5 * 1024 * 1024)


async def test_messages_come_as_they_were_sent_and_in_order(house: House) -> None:
    wire = await house.client()
    await wire.subscribe()
    await wire.create()
    ids = [await wire.publish(b"%d" % number, number=number) for number in range(5)]
    assert ids == [(5, number) for number in range(5)]
    assert await contents(wire, 5) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_receipt_names_the_send_it_is_for(house: House) -> None:
    wire = await house.client()
    assert (await wire.create(7)).producer_name
    wire.send(b"x", producer_id=7, number=41)
    receipt = await wire.answer(Command.SEND_RECEIPT)
    assert (receipt.producer_id, receipt.sequence_id) == (7, 41)


async def test_producers_without_a_name_get_one_each(house: House) -> None:
    wire, other = await house.client(), await house.client()
    names = {(await wire.create(1)).producer_name, (await other.create(1)).producer_name}
    assert len(names) == 2


async def test_a_batch_takes_a_permit_for_each_of_its_messages(house: House) -> None:
    wire = await house.client()
    await wire.subscribe(permits=3)
    await wire.create()
    for number in range(3):
        await wire.publish(b"%d" % number, messages=2)
    assert await contents(wire, 2) == [b"0", b"1"]
    await wire.settled()
    assert [command for command, _, _ in wire.kept if command is Command.MESSAGE] == []
    wire.tell(Command.FLOW, consumer_id=1, message_permits=1)
    wire.tell(Command.FLOW, consumer_id=1, message_permits=1)
    assert await contents(wire, 1) == [b"2"]


async def test_a_second_exclusive_consumer_is_refused(house: House) -> None:
    wire, other = await house.client(), await house.client()
    await wire.subscribe()
    asked = {"topic": "t", "subscription": "s", "consumer_id": 1, "request_id": 1}
    error, _ = await refusal(other, Command.SUBSCRIBE, **asked, sub_type=0)
    assert error is ServerError.CONSUMER_BUSY
    error, _ = await refusal(other, Command.SUBSCRIBE, **asked, sub_type=1)
    assert error is ServerError.CONSUMER_BUSY


async def test_key_shared_is_refused_with_what_there_is_instead(house: House) -> None:
    wire = await house.client()
    asked = {"topic": "t", "subscription": "s", "consumer_id": 1, "request_id": 1}
    error, text = await refusal(wire, Command.SUBSCRIBE, **asked, sub_type=3)
    assert error is ServerError.NOT_ALLOWED
    assert "exclusive, shared and failover are" in text


async def test_shared_consumers_take_turns_and_inherit_what_one_left_open(house: House) -> None:
    first, second, producing = [await house.client() for _ in range(3)]
    await first.subscribe(kind=SHARED)
    await second.subscribe(kind=SHARED)
    await producing.create()
    for number in range(6):
        await producing.publish(b"%d" % number)
    halves = await contents(first, 3), await contents(second, 3)
    assert sorted(halves[0] + halves[1]) == [b"%d" % number for number in range(6)]
    first.writer.close()
    fields = [(await second.delivered(Command.MESSAGE))[0] for _ in range(3)]
    assert [one.redelivery_count for one in fields] == [1, 1, 1]


async def test_the_next_failover_consumer_goes_on_where_the_active_one_stopped(
    house: House,
) -> None:
    active, waiting, producing = [await house.client() for _ in range(3)]
    await active.subscribe(kind=FAILOVER)
    assert (await active.answer(Command.ACTIVE_CONSUMER_CHANGE)).is_active
    await waiting.subscribe(kind=FAILOVER)
    assert not (await waiting.answer(Command.ACTIVE_CONSUMER_CHANGE)).is_active
    await producing.create()
    for number in range(3):
        await producing.publish(b"%d" % number)
    _, _, message_id = await active.message()
    active.ack(message_id)
    await active.settled()
    active.tell(Command.CLOSE_CONSUMER, consumer_id=1, request_id=9)
    assert (await waiting.answer(Command.ACTIVE_CONSUMER_CHANGE)).is_active
    assert await contents(waiting, 2) == [b"1", b"2"]


async def test_a_lower_priority_level_is_active_first(house: House) -> None:
    late, early = await house.client(), await house.client()
    await late.subscribe(kind=FAILOVER, priority_level=2)
    await late.answer(Command.ACTIVE_CONSUMER_CHANGE)
    await early.subscribe(kind=FAILOVER, priority_level=1)
    assert (await early.answer(Command.ACTIVE_CONSUMER_CHANGE)).is_active
    assert not (await late.answer(Command.ACTIVE_CONSUMER_CHANGE)).is_active


@pytest.mark.parametrize("cumulative", [False, True])
async def test_what_is_acknowledged_does_not_come_again(house: House, *, cumulative: bool) -> None:
    wire = await house.client()
    await wire.subscribe()
    await wire.create()
    for number in range(4):
        await wire.publish(b"%d" % number)
    ids = [(await wire.message())[2] for _ in range(4)]
    wire.ack(ids[2], cumulative=cumulative)
    wire.tell(Command.CLOSE_CONSUMER, consumer_id=1, request_id=9)
    await wire.answer(Command.SUCCESS)
    await wire.subscribe(2)
    again = [b"3"] if cumulative else [b"0", b"1", b"3"]
    assert await contents(wire, len(again)) == again


async def test_a_part_of_a_batch_acknowledges_nothing_of_it(house: House) -> None:
    wire = await house.client()
    await wire.subscribe()
    await wire.create()
    await wire.publish(b"batch", messages=4)
    _, _, message_id = await wire.message()
    wire.ack({**message_id, "ack_set": [3]})
    wire.tell(Command.REDELIVER, consumer_id=1)
    assert await contents(wire, 1) == [b"batch"]


async def test_named_messages_alone_are_delivered_again(house: House) -> None:
    wire = await house.client()
    await wire.subscribe(kind=SHARED)
    await wire.create()
    for number in range(3):
        await wire.publish(b"%d" % number)
    ids = [(await wire.message())[2] for _ in range(3)]
    wire.tell(Command.REDELIVER, consumer_id=1, message_ids=[ids[1]])
    assert await contents(wire, 1) == [b"1"]
    await wire.settled()
    assert not [command for command, _, _ in wire.kept if command is Command.MESSAGE]


async def test_an_acknowledgement_is_answered_only_if_the_client_wants_that(house: House) -> None:
    wire = await house.client()
    await wire.subscribe()
    await wire.create()
    await wire.publish(b"x")
    _, _, message_id = await wire.message()
    told = {"consumer_id": 1, "ack_type": 0, "message_id": [message_id]}
    wire.tell(Command.ACK, **told, request_id=77)
    answer = await wire.answer(Command.ACK_RESPONSE)
    assert (answer.request_id, answer.HasField("error")) == (77, False)
    wire.tell(Command.ACK, **told)
    await wire.settled()
    assert wire.kept == []


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({"message_id": {"ledger_id": 2**64 - 1, "entry_id": 2**64 - 1}}, [b"0", b"1", b"2"]),
        ({"message_id": {"ledger_id": 5, "entry_id": 1}}, [b"1", b"2"]),
        ({"message_id": {"ledger_id": 2**63 - 1, "entry_id": 2**63 - 1}}, []),
        ({"publish_time": 1002}, [b"2"]),
    ],
)
async def test_seek_begins_anew_at_a_message_or_a_time(
    house: House, target: dict[str, object], expected: list[bytes]
) -> None:
    wire = await house.client()
    await wire.subscribe()
    await wire.create()
    for number in range(3):
        payload = encode_payload(metadata(publish_time_ms=1000 + number), b"%d" % number)
        wire.write(encode_frame(encode(Command.SEND, producer_id=1, sequence_id=number), payload))
    for message in [await wire.message() for _ in range(3)]:
        wire.ack(message[2])
    wire.tell(Command.SEEK, consumer_id=1, request_id=9, **target)
    # The client has to come back, here, and compute anew what it may be sent.
    assert (await wire.answer(Command.CLOSE_CONSUMER)).assigned_broker_url == house.url
    assert (await wire.answer(Command.SUCCESS)).request_id == 9
    await wire.subscribe(2)
    await wire.publish(b"new")
    assert await contents(wire, len(expected) + 1) == [*expected, b"new"]


async def test_a_new_subscription_begins_at_the_end_or_where_it_is_told(house: House) -> None:
    wire = await house.client()
    await wire.create()
    await wire.publish(b"old")
    await wire.subscribe(1, name="latest")
    await wire.subscribe(2, name="earliest", initial_position=1)
    assert (await wire.message())[:2] == (2, b"old")
    await wire.publish(b"new")
    assert {(await wire.message())[:2] for _ in range(2)} == {(1, b"new"), (2, b"new")}


async def test_a_reader_begins_after_the_message_it_names_and_leaves_nothing(house: House) -> None:
    wire = await house.client()
    await wire.create()
    ids = [await wire.publish(b"%d" % number) for number in range(3)]
    start = {"ledger_id": ids[0][0], "entry_id": ids[0][1]}
    await wire.subscribe(1, name="reader", durable=False, start_message_id=start)
    assert await contents(wire, 2) == [b"1", b"2"]
    wire.tell(Command.CLOSE_CONSUMER, consumer_id=1, request_id=9)
    await wire.answer(Command.SUCCESS)
    inside = {**start, "batch_index": 0}
    await wire.subscribe(2, name="reader", durable=False, start_message_id=inside)
    assert await contents(wire, 3) == [b"0", b"1", b"2"]


async def test_unsubscribing_forgets_what_was_acknowledged(house: House) -> None:
    wire = await house.client()
    await wire.create()
    await wire.publish(b"x")
    await wire.subscribe(initial_position=1)
    _, _, message_id = await wire.message()
    wire.ack(message_id)
    wire.tell(Command.UNSUBSCRIBE, consumer_id=1, request_id=9)
    assert (await wire.answer(Command.SUCCESS)).request_id == 9
    await wire.subscribe(initial_position=1)
    assert await contents(wire, 1) == [b"x"]


async def test_the_last_message_id_is_that_of_the_newest_message(house: House) -> None:
    wire = await house.client()
    await wire.subscribe(permits=0)
    wire.tell(Command.LAST_MESSAGE_ID, consumer_id=1, request_id=1)
    empty = (await wire.answer(Command.LAST_MESSAGE_ID_RESPONSE)).message_id
    assert (empty.ledger_id, empty.entry_id) == (2**64 - 1, 2**64 - 1)
    await wire.create()
    await wire.publish(b"one")
    await wire.publish(b"batch", messages=3)
    wire.tell(Command.LAST_MESSAGE_ID, consumer_id=1, request_id=2)
    last = (await wire.answer(Command.LAST_MESSAGE_ID_RESPONSE)).message_id
    assert (last.ledger_id, last.entry_id, last.batch_index) == (5, 1, 2)


async def test_a_producer_that_comes_back_takes_its_own_place_and_no_other(house: House) -> None:
    wire, other = await house.client(), await house.client()
    await wire.create(1, producer_name="p", epoch=1)
    await other.create(1, producer_name="p", epoch=2)
    asked = {"topic": "t", "producer_id": 2, "request_id": 5, "producer_name": "p", "epoch": 9}
    error, _ = await refusal(other, Command.PRODUCER, **asked)
    assert error is ServerError.PRODUCER_BUSY
    await other.publish(b"x")


async def test_the_broker_counts_what_its_clients_do(house: House) -> None:
    wire = await house.client()
    await wire.subscribe()
    await wire.create(1)
    await wire.create(2)
    await wire.publish(b"0123456789", messages=4)
    await wire.message()
    stats = house.broker.stats().bundles[BUNDLE]
    assert (stats.topics, stats.producers, stats.consumers) == (1, 2, 1)
    assert stats.msgs_in_per_s == stats.msgs_out_per_s > 0
    assert stats.bytes_in_per_s == stats.bytes_out_per_s > 2 * stats.msgs_in_per_s
    (traffic,) = house.broker.topics(BUNDLE).values()
    assert traffic.msgs_out_per_s > 0
    wire.tell(Command.CLOSE_CONSUMER, consumer_id=1, request_id=9)
    wire.tell(Command.CLOSE_PRODUCER, producer_id=1, request_id=10)
    await wire.answer(Command.SUCCESS)
    await wire.answer(Command.SUCCESS)
    stats = house.broker.stats().bundles[BUNDLE]
    assert (stats.producers, stats.consumers) == (1, 0)


async def test_a_client_that_reads_nothing_is_sent_no_more_than_a_little(house: House) -> None:
    slow, producing = await house.client(), await house.client()
    await slow.subscribe(permits=1_000_000)
    await producing.create()
    big = b"x" * 500_000
    for _ in range(60):
        await producing.publish(big)
    (connection,) = [one for one in house.server._running if one.congested]
    assert connection._writer.transport.get_write_buffer_size() < 5_000_000
    assert await contents(slow, 60) == [big] * 60
