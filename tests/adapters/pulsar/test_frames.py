import asyncio
from collections.abc import Awaitable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.testbed.pulsar_protocol.fields import Command
from tests.testbed.pulsar_protocol.frames import (
    MAX_FRAME_BYTES,
    Frame,
    PayloadFacts,
    WrongChecksum,
    encode_frame,
    encode_payload,
    read_frame,
    read_payload,
)
from tests.testbed.pulsar_protocol.protocol import ProtocolBroken, decode, encode

# producer_name "p", sequence_id 7, publish_time 1000, num_messages_in_batch 3
METADATA = b"\x0a\x01p\x10\x07\x18\xe8\x07\x58\x03"


def reading(data: bytes) -> Awaitable[Frame]:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return read_frame(reader)


def test_a_command_has_the_bytes_that_the_protocol_gives_it() -> None:
    # type = 2 (CONNECT); field 2: client_version (1) = "x", protocol_version (4) = 19
    assert encode(Command.CONNECT, client_version="x", protocol_version=19) == (
        b"\x08\x02\x12\x05\x0a\x01x\x20\x13"
    )


def test_a_closed_producer_is_told_the_new_owner_in_the_field_that_clients_read() -> None:
    told = encode(Command.CLOSE_PRODUCER, producer_id=1, request_id=2, assigned_broker_url="u")
    assert told == b"\x08\x0f\x7a\x07\x08\x01\x10\x02\x1a\x01u"


def test_what_is_read_over_does_no_harm() -> None:
    known = encode(Command.FLOW, consumer_id=3, message_permits=4)
    command, fields = decode(known + b"\xa2\x06\x03abc")
    assert (command, fields.consumer_id, fields.message_permits) == (Command.FLOW, 3, 4)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff", "no BaseCommand"),
        (b"", "without type"),
        (b"\x08\x63", "command 99 is not known"),
        (b"\x08\x0b", "FLOW came without its fields"),
        (b"\x08\x0b\x5a\x02\x08\x01", "without flow.message_permits"),
    ],
)
def test_bytes_that_are_no_command_are_refused(data: bytes, says: str) -> None:
    with pytest.raises(ProtocolBroken, match=says):
        decode(data)


@given(st.binary(max_size=60), st.binary(max_size=60))
async def test_what_is_framed_is_read_again(command: bytes, payload: bytes) -> None:
    assert await reading(encode_frame(command, payload)) == Frame(command, payload)


async def test_a_frame_longer_than_allowed_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolBroken, match=f"expected 4 to {MAX_FRAME_BYTES}"):
        await reading((MAX_FRAME_BYTES + 1).to_bytes(4))


async def test_a_command_longer_than_its_frame_is_refused() -> None:
    with pytest.raises(ProtocolBroken, match="a command of 9 bytes in a frame of 5"):
        await reading(b"\x00\x00\x00\x05\x00\x00\x00\x09x")


async def test_a_frame_that_breaks_off_ends_the_connection() -> None:
    with pytest.raises(asyncio.IncompleteReadError):
        await reading(encode_frame(b"abc")[:-1])


def test_a_payload_tells_when_it_was_published_and_how_many_messages_it_holds() -> None:
    assert read_payload(encode_payload(METADATA, b"abc")) == PayloadFacts(1000, 3)


def test_a_payload_may_come_without_a_checksum() -> None:
    plain = len(METADATA).to_bytes(4) + METADATA + b"abc"
    assert read_payload(plain) == PayloadFacts(1000, 3)


@given(place=st.integers(2, 19), bit=st.integers(0, 7))
def test_any_bit_that_changed_on_the_way_is_noticed(place: int, bit: int) -> None:
    payload = bytearray(encode_payload(METADATA, b""))
    payload[place] ^= 1 << bit
    with pytest.raises(WrongChecksum):
        read_payload(bytes(payload))


@given(st.binary(max_size=40))
def test_a_payload_of_garbage_is_refused_and_nothing_else(payload: bytes) -> None:
    try:
        facts = read_payload(payload)
    except ProtocolBroken:
        return
    assert facts.messages >= 1
