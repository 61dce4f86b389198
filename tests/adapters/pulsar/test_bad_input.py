"""What is not the protocol, or makes no sense in it, does no harm to anybody else."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pulsar_wire import BUNDLE, House, metadata, open_house
from waiting import eventually

from tests.testbed.pulsar_protocol import connection
from tests.testbed.pulsar_protocol.fields import FIELDS, Command
from tests.testbed.pulsar_protocol.frames import MAX_FRAME_BYTES, encode_frame, encode_payload
from tests.testbed.pulsar_protocol.protocol import ServerError, encode


async def still_serves(house: House) -> None:
    wire = await house.client()
    await wire.subscribe(topic="sound", name=f"sub-{wire.writer.get_extra_info('sockname')}")
    await wire.create(topic="sound")
    await wire.publish(b"x")
    assert (await wire.message())[1] == b"x"
    wire.writer.close()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="another protocol"),
        pytest.param((MAX_FRAME_BYTES + 1).to_bytes(4), id="too long a frame"),
        pytest.param(b"\x00\x00\x00\x00", id="an empty frame"),
        pytest.param(b"\x00\x00\x00\x04\xff\xff\xff\xff", id="a command longer than its frame"),
        pytest.param(encode_frame(b"\xff\xff\xff"), id="no command"),
        pytest.param(encode_frame(b"\x08\x63"), id="an unknown command"),
        pytest.param(encode_frame(encode(Command.PING)), id="a command before connect"),
        pytest.param(
            encode_frame(encode(Command.CONNECT, client_version="x"))
            + encode_frame(encode(Command.SUCCESS, request_id=1)),
            id="a broker's command",
        ),
        pytest.param(
            encode_frame(encode(Command.CONNECT, client_version="x"))
            + encode_frame(encode(Command.CONNECT, client_version="x")),
            id="connecting twice",
        ),
    ],
)
async def test_who_does_not_keep_to_the_protocol_is_cut_off(house: House, data: bytes) -> None:
    wire = await house.stranger()
    wire.write(data)
    await wire.closed()
    await still_serves(house)


async def test_who_hangs_up_in_the_middle_of_a_frame_is_forgotten(house: House) -> None:
    wire = await house.client()
    await wire.create()
    wire.write(encode_frame(encode(Command.PING))[:-1])
    wire.writer.close()
    await still_serves(house)


@pytest.mark.parametrize(
    "payload", [b"", b"\x0e\x01", b"\x00\x00\x00\x99x", b"\x00\x00\x00\x01\xff"]
)
async def test_a_message_without_metadata_ends_its_connection(house: House, payload: bytes) -> None:
    wire = await house.client()
    await wire.create()
    wire.write(encode_frame(encode(Command.SEND, producer_id=1, sequence_id=0), payload))
    await wire.closed()
    await still_serves(house)


async def test_a_message_with_a_wrong_checksum_is_refused_and_no_more(house: House) -> None:
    wire = await house.client()
    await wire.create()
    payload = encode_payload(metadata(), b"abc")[:-1] + b"X"
    wire.write(encode_frame(encode(Command.SEND, producer_id=1, sequence_id=7), payload))
    error = await wire.answer(Command.SEND_ERROR)
    assert (error.error, error.sequence_id) == (ServerError.CHECKSUM, 7)
    await wire.publish(b"good", number=8)


async def test_a_batch_that_claims_more_messages_than_bytes_is_not_believed(house: House) -> None:
    wire = await house.client()
    await wire.subscribe(permits=100)
    await wire.create()
    await wire.publish(b"x", messages=2**31 - 1)
    await wire.message()
    wire.tell(Command.FLOW, consumer_id=1, message_permits=100)
    await wire.publish(b"y")
    assert (await wire.message())[1] == b"y"


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        (Command.FLOW, {"consumer_id": 9, "message_permits": 1}),
        (Command.ACK, {"consumer_id": 9, "ack_type": 0}),
        (Command.REDELIVER, {"consumer_id": 9}),
    ],
)
async def test_commands_for_a_consumer_that_is_gone_are_read_over(
    house: House, command: Command, fields: dict[str, Any]
) -> None:
    wire = await house.client()
    wire.tell(command, **fields)
    wire.send(b"unclaimed", producer_id=9)
    await wire.settled()
    assert wire.kept == []


@pytest.mark.parametrize("command", [Command.SEEK, Command.UNSUBSCRIBE, Command.LAST_MESSAGE_ID])
async def test_requests_for_a_consumer_that_is_gone_are_refused(
    house: House, command: Command
) -> None:
    wire = await house.client()
    wire.tell(command, consumer_id=9, request_id=4)
    error = await wire.answer(Command.ERROR)
    assert (error.request_id, error.error) == (4, ServerError.SERVICE_NOT_READY)


async def test_closing_what_is_not_there_is_a_success(house: House) -> None:
    wire = await house.client()
    wire.tell(Command.CLOSE_PRODUCER, producer_id=9, request_id=1)
    wire.tell(Command.CLOSE_CONSUMER, consumer_id=9, request_id=2)
    assert {(await wire.answer(Command.SUCCESS)).request_id for _ in range(2)} == {1, 2}


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        ("a/b", ServerError.INVALID_TOPIC_NAME),
        ("persistent://../../etc/passwd", ServerError.INVALID_TOPIC_NAME),
        ("persistent://public/default/" + "ä" * 100, ServerError.INVALID_TOPIC_NAME),
        ("topic://public/default/t", ServerError.NOT_ALLOWED),
    ],
)
async def test_topics_that_cannot_be_are_refused(
    house: House, topic: str, error: ServerError
) -> None:
    wire = await house.client()
    wire.tell(Command.PRODUCER, topic=topic, producer_id=1, request_id=1)
    assert (await wire.answer(Command.ERROR)).error == error


@pytest.mark.parametrize("local", ["..", ".", "a%2Fb", "-", " x", "ü"])
async def test_a_topic_cannot_leave_its_folder(house: House, local: str, tmp_path: Path) -> None:
    wire = await house.client()
    await wire.create(topic=f"persistent://public/default/{local}")
    await wire.publish(b"x")
    logs = await asyncio.to_thread(lambda: list(tmp_path.rglob("*.log")))
    assert len(logs) == 1
    assert logs[0].parents[1] == tmp_path / "persistent" / "public" / "default"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"sub_type": 9}, ServerError.NOT_ALLOWED),
        ({"subscription": ""}, ServerError.NOT_ALLOWED),
        ({"subscription": "s" * 513}, ServerError.NOT_ALLOWED),
    ],
)
async def test_subscriptions_that_cannot_be_are_refused(
    house: House, fields: dict[str, Any], error: ServerError
) -> None:
    wire = await house.client()
    asked = {"topic": "t", "subscription": "s", "sub_type": 0, "consumer_id": 1, "request_id": 1}
    wire.tell(Command.SUBSCRIBE, **(asked | fields))
    assert (await wire.answer(Command.ERROR)).error == error


async def test_exclusive_producers_and_transactions_are_refused_by_name(house: House) -> None:
    wire = await house.client()
    wire.tell(Command.PRODUCER, topic="t", producer_id=1, request_id=1, access_mode=1)
    error = await wire.answer(Command.ERROR)
    assert (error.error, "access mode 1" in error.message) == (ServerError.NOT_ALLOWED, True)
    await wire.create()
    sent = {"producer_id": 1, "sequence_id": 0, "transaction_least": 1, "transaction_most": 1}
    payload = encode_payload(metadata(), b"x")
    wire.write(encode_frame(encode(Command.SEND, **sent), payload))
    assert (await wire.answer(Command.SEND_ERROR)).error == ServerError.NOT_ALLOWED


async def test_a_client_that_answers_no_ping_is_cut_off(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PING_EVERY_S", 0.05)
    wire = await house.client()
    await wire.create()
    await wire.answer(Command.PING)
    await wire.closed()
    await eventually(lambda: house.broker.stats().bundles[BUNDLE].producers == 0)


NUMBERS = st.one_of(st.integers(0, 3), st.integers(0, 2**63 - 1))
VALUES = {
    "uint64": st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "int32": st.integers(-2, 2**31 - 1),
    "bool": st.booleans(),
    "bytes": st.binary(max_size=9),
    "string": st.sampled_from(["t", "u", "", "a/b", "persistent://public/default/t", "s"]),
    "MessageId": st.fixed_dictionaries(
        {"ledger_id": st.sampled_from([5, 0, 2**64 - 1, 2**63 - 1]), "entry_id": NUMBERS},
        optional={"batch_index": st.integers(-1, 3), "ack_set": st.lists(st.integers(0, 7))},
    ),
}
OFTEN = [
    Command.SUBSCRIBE,
    Command.PRODUCER,
    Command.SEND,
    Command.ACK,
    Command.FLOW,
    Command.SEEK,
    Command.REDELIVER,
    Command.UNSUBSCRIBE,
    Command.LAST_MESSAGE_ID,
    Command.CLOSE_CONSUMER,
    Command.CLOSE_PRODUCER,
    Command.LOOKUP,
    Command.PARTITIONS,
    Command.TOPICS_OF_NAMESPACE,
]


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Return a frame with a command whose fields are anything their types allow."""
    command = draw(st.sampled_from(OFTEN))
    name = "".join(part.capitalize() for part in command.name.split("_"))
    fields: dict[str, Any] = {}
    for line in FIELDS[name]:
        number, field, kind, *_ = line.split()
        if number.endswith("!") or draw(st.booleans()):
            values = VALUES[kind]
            fields[field] = draw(st.lists(values, max_size=3) if number.endswith("*") else values)
    payload = b""
    if command is Command.SEND:
        payload = draw(st.one_of(st.binary(max_size=30), st.just(encode_payload(metadata(), b"x"))))
    return encode_frame(encode(command, **fields), payload)


@settings(max_examples=25)
@given(
    streams=st.lists(
        st.one_of(frames(), frames(), frames(), st.binary(min_size=1, max_size=40)), max_size=30
    )
)
async def test_no_stream_of_frames_and_garbage_brings_the_server_down(
    streams: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: failures.append(told))
    house = open_house("fuzzed", tmp_path_factory.mktemp("ledger"), hold_s=0.01)
    house.renew()
    house.load(5)
    wire = await house.client()
    for data in streams:
        wire.write(data)
    wire.writer.close()
    await still_serves(house)
    await house.leave()
    assert failures == []
    assert not house._serving.cancelled() or house._serving.done()
