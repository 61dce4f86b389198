"""The messages of Pulsar's binary protocol that this broker sends and understands.

protobuf makes their classes from the tables in `fields` when this module is imported, so there is
no generated file to keep up to date.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from loadmanager.core.errors import LoadManagerError
from tests.testbed.pulsar_protocol.fields import FIELDS, Command

PROTOCOL_VERSION: Final = 19
"""The newest protocol version that this broker supports."""

UNASKED: Final = 2**64 - 1
"""The request id of a command that a broker sends without a request."""


class ProtocolBroken(LoadManagerError):
    """A client sent something that the protocol does not allow; its connection must be closed."""


class ServerError(IntEnum):
    """The error code of a refusal; clients decide by it whether to look the topic up again."""

    UNKNOWN = 0
    METADATA = 1
    PERSISTENCE = 2
    CONSUMER_BUSY = 5
    SERVICE_NOT_READY = 6
    BACKLOG_QUOTA = 8
    CHECKSUM = 9
    TOO_MANY_REQUESTS = 14
    PRODUCER_BUSY = 16
    INVALID_TOPIC_NAME = 17
    NOT_ALLOWED = 22


class SubscriptionType(IntEnum):
    """How the consumers of a subscription share its messages."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3


_PACKAGE: Final = "loadmanager.pulsar"
_Field = descriptor_pb2.FieldDescriptorProto
_TYPES: Final = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}
_LABELS: Final = {"!": _Field.LABEL_REQUIRED, "*": _Field.LABEL_REPEATED}


def _classes() -> Mapping[str, Any]:
    """Return a message class for each table."""
    file = descriptor_pb2.FileDescriptorProto(
        name="loadmanager/pulsar.proto", package=_PACKAGE, syntax="proto2"
    )
    for name, fields in FIELDS.items():
        file.message_type.add(name=name, field=map(_field, fields))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in FIELDS
    }


def _field(line: str) -> descriptor_pb2.FieldDescriptorProto:
    number, name, kind, *default = line.split()
    field = _Field(
        name=name,
        number=int(number.rstrip("!*")),
        label=_LABELS.get(number[-1], _Field.LABEL_OPTIONAL),
        default_value=default[0] if default else None,
    )
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{kind}"
    return field


_CLASSES: Final = _classes()


def encode(command: Command, **fields: Any) -> bytes:
    """Return the bytes of ``command``; nested messages are given as dicts."""
    return bytes(
        _CLASSES["BaseCommand"](type=command, **{command.name.lower(): fields}).SerializeToString()
    )


def decode(data: bytes) -> tuple[Command, Any]:
    """Return a command and its fields.

    Raises:
        ProtocolBroken: the bytes are no command, or an unknown one, or lack a required field.
    """
    base = _parsed("BaseCommand", data)
    try:
        command = Command(base.type)
    except ValueError:
        raise ProtocolBroken(f"command {base.type} is not known here") from None
    field = command.name.lower()
    if not base.HasField(field):
        raise ProtocolBroken(f"command {command.name} came without its fields")
    return command, getattr(base, field)


def decode_metadata(data: bytes) -> tuple[int, int]:
    """Return publish time in ms and number of messages from the metadata of a payload.

    Raises:
        ProtocolBroken: the bytes are no metadata.
    """
    metadata = _parsed("Metadata", data)
    return metadata.publish_time, metadata.num_messages_in_batch


def _parsed(name: str, data: bytes) -> Any:
    try:
        message = _CLASSES[name].FromString(data)
    except DecodeError as error:
        raise ProtocolBroken(f"{len(data)} bytes are no {name}: {error}") from None
    # Some of protobuf's implementations leave this check to the caller.
    if not message.IsInitialized():
        absent = ", ".join(message.FindInitializationErrors())
        raise ProtocolBroken(f"a {name} without {absent}")
    return message
