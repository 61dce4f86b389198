"""Frames: the encoding of commands and payloads on the wire.

A frame is its length, the length of a command, the command, and for messages the payload:
a mark, the CRC32C of the rest, the length of the metadata, the metadata, the content.
The payload is kept and forwarded unchanged, so the consumer checks the producer's checksum.
"""

import asyncio
from dataclasses import dataclass
from struct import Struct
from typing import Final

import google_crc32c

from tests.testbed.pulsar_protocol.protocol import ProtocolBroken, decode_metadata

MAX_MESSAGE_BYTES: Final = 5 * 1024 * 1024
MAX_FRAME_BYTES: Final = MAX_MESSAGE_BYTES + 10 * 1024
"""The limits of a message and of its frame, as Pulsar's defaults."""

MAX_BATCH_MESSAGES: Final = 10_000
"""A larger batch is forwarded, and counts as this many messages."""

_LENGTH: Final = Struct(">I")
_LENGTHS: Final = Struct(">II")
_CHECKED: Final = Struct(">HI")
_MARK: Final = 0x0E01


class WrongChecksum(ProtocolBroken):
    """The checksum of a payload does not match its content."""


@dataclass(frozen=True, slots=True)
class Frame:
    """An encoded command, and the payload after it."""

    command: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class PayloadFacts:
    """The metadata of a payload; the broker reads nothing else of it."""

    publish_time_ms: int
    messages: int


def encode_frame(command: bytes, payload: bytes = b"") -> bytes:
    """Return the frame of an encoded command."""
    length = _LENGTH.size + len(command) + len(payload)
    return b"".join((_LENGTHS.pack(length, len(command)), command, payload))


def encode_payload(metadata: bytes, content: bytes) -> bytes:
    """Return a payload with its checksum, as a producer sends it."""
    checked = _LENGTH.pack(len(metadata)) + metadata + content
    return _CHECKED.pack(_MARK, google_crc32c.value(checked)) + checked


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """Return the next frame.

    Raises:
        ProtocolBroken: it is too long, or its command is longer than the frame.
        asyncio.IncompleteReadError: the connection ended.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if not _LENGTH.size <= length <= MAX_FRAME_BYTES:
        raise ProtocolBroken(f"a frame of {length} bytes; expected 4 to {MAX_FRAME_BYTES}")
    rest = await reader.readexactly(length)
    (length,) = _LENGTH.unpack_from(rest)
    end = _LENGTH.size + length
    if end > len(rest):
        raise ProtocolBroken(f"a command of {length} bytes in a frame of {len(rest)}")
    return Frame(rest[_LENGTH.size : end], rest[end:])


def read_payload(payload: bytes) -> PayloadFacts:
    """Return the metadata of a payload, after a check of its checksum if it has one.

    Raises:
        WrongChecksum: the checksum is wrong.
        ProtocolBroken: it has no metadata.
    """
    start = 0
    if len(payload) >= _CHECKED.size:
        mark, checksum = _CHECKED.unpack_from(payload)
        if mark == _MARK:
            start = _CHECKED.size
            if google_crc32c.value(payload[start:]) != checksum:
                raise WrongChecksum(f"a payload of {len(payload)} bytes has a wrong checksum")
    if len(payload) < start + _LENGTH.size:
        raise ProtocolBroken(f"a payload of {len(payload)} bytes; expected metadata in it")
    (length,) = _LENGTH.unpack_from(payload, start)
    begin = start + _LENGTH.size
    if begin + length > len(payload):
        raise ProtocolBroken(f"metadata of {length} bytes in a payload of {len(payload)}")
    publish_time_ms, messages = decode_metadata(payload[begin : begin + length])
    # Others pay in CPU and permits for what a sender claims: accept no more than there is room for.
    room = min(len(payload), MAX_BATCH_MESSAGES)
    return PayloadFacts(publish_time_ms, max(1, min(messages, room)))
