"""Frames of Pulsar's binary protocol, and the commands in them.

protobuf makes the classes of the commands from a table. The numbers are those of PulsarApi.proto.
"""

import asyncio
from collections.abc import Mapping, Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

MAX_MESSAGE_BYTES: Final = 5 * 1024 * 1024
SERVICE_NOT_READY: Final = 6
"""The error after which a client looks its topic up again."""


class Command(IntEnum):
    """The number of a command: its type, and the number of its field in a BaseCommand."""

    CONNECT = 2
    CONNECTED = 3
    SUBSCRIBE = 4
    PRODUCER = 5
    SEND = 6
    SENDRECEIPT = 7
    MESSAGE = 9
    ACK = 10
    FLOW = 11
    SUCCESS = 13
    ERROR = 14
    CLOSEPRODUCER = 15
    CLOSECONSUMER = 16
    PRODUCERSUCCESS = 17
    PING = 18
    PONG = 19


# "number name type"; "!" after the number marks a required field, "*" a repeated one.
_FIELDS: Final[Mapping[str, Sequence[str]]] = {
    "MESSAGEID": ("1! ledger_id uint64", "2! entry_id uint64"),
    "CONNECT": ("1! client_version string", "4 protocol_version int32"),
    "CONNECTED": (
        "1! server_version string",
        "2 protocol_version int32",
        "3 max_message_size int32",
    ),
    "SUBSCRIBE": (
        "1! topic string",
        "2! subscription string",
        "4! consumer_id uint64",
        "5! request_id uint64",
    ),
    "PRODUCER": (
        "1! topic string",
        "2! producer_id uint64",
        "3! request_id uint64",
        "4 producer_name string",
    ),
    "SEND": ("1! producer_id uint64", "2! sequence_id uint64"),
    "SENDRECEIPT": ("1! producer_id uint64", "2! sequence_id uint64", "3 message_id MESSAGEID"),
    "MESSAGE": ("1! consumer_id uint64", "2! message_id MESSAGEID"),
    "ACK": ("1! consumer_id uint64", "3* message_id MESSAGEID"),
    "FLOW": ("1! consumer_id uint64", "2! message_permits uint32"),
    "SUCCESS": ("1! request_id uint64",),
    "ERROR": ("1! request_id uint64", "2! error int32", "3! message string"),
    "CLOSEPRODUCER": (
        "1! producer_id uint64",
        "2! request_id uint64",
        "3 assigned_broker_url string",
    ),
    "CLOSECONSUMER": (
        "1! consumer_id uint64",
        "2! request_id uint64",
        "3 assigned_broker_url string",
    ),
    "PRODUCERSUCCESS": (
        "1! request_id uint64",
        "2! producer_name string",
        "4 schema_version bytes",
    ),
    "PING": (),
    "PONG": (),
    "BaseCommand": (
        "1! type int32",
        *(f"{command.value} {command.name.lower()} {command.name}" for command in Command),
    ),
}
_PACKAGE: Final = "testbed.pulsar"
_Field = descriptor_pb2.FieldDescriptorProto
_TYPES: Final = {
    "bytes": _Field.TYPE_BYTES,
    "int32": _Field.TYPE_INT32,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}
_LABELS: Final = {"!": _Field.LABEL_REQUIRED, "*": _Field.LABEL_REPEATED}
_LENGTH: Final = Struct(">I")


def _field(line: str) -> descriptor_pb2.FieldDescriptorProto:
    number, name, kind = line.split()
    label = _LABELS.get(number[-1], _Field.LABEL_OPTIONAL)
    field = _Field(name=name, number=int(number.rstrip("!*")), label=label)
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{kind}"
    return field


def _base_command() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="testbed/pulsar.proto", package=_PACKAGE, syntax="proto2"
    )
    for name, fields in _FIELDS.items():
        file.message_type.add(name=name, field=map(_field, fields))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.BaseCommand"))


_BaseCommand: Final = _base_command()


def encode_frame(command: Command, payload: bytes = b"", /, **fields: Any) -> bytes:
    """Return a frame: its length, that of the command, the command, and a message's payload."""
    data = _BaseCommand(type=command, **{command.name.lower(): fields}).SerializeToString()
    lengths = _LENGTH.pack(_LENGTH.size + len(data) + len(payload)) + _LENGTH.pack(len(data))
    return b"".join((lengths, data, payload))


async def read_frame(reader: asyncio.StreamReader) -> tuple[Command, Any, bytes]:
    """Return command, fields and payload of the next frame; raises ValueError."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    rest = await reader.readexactly(length)
    end = _LENGTH.size + _LENGTH.unpack_from(rest)[0]
    base = _BaseCommand.FromString(rest[_LENGTH.size : end])
    command = Command(base.type)
    return command, getattr(base, command.name.lower()), rest[end:]
