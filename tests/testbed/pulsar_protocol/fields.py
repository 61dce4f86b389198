"""The messages of Pulsar's binary protocol as tables of field numbers, names and types.

The numbers are those of PulsarApi.proto. Fields that are not in a table are ignored, as protobuf
does. Enumerations are plain integers here, so that unknown values reach the code that refuses
them.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final


class Command(IntEnum):
    """The number of a command: its type, and the number of its field in a BaseCommand."""

    CONNECT = 2
    CONNECTED = 3
    SUBSCRIBE = 4
    PRODUCER = 5
    SEND = 6
    SEND_RECEIPT = 7
    SEND_ERROR = 8
    MESSAGE = 9
    ACK = 10
    FLOW = 11
    UNSUBSCRIBE = 12
    SUCCESS = 13
    ERROR = 14
    CLOSE_PRODUCER = 15
    CLOSE_CONSUMER = 16
    PRODUCER_SUCCESS = 17
    PING = 18
    PONG = 19
    REDELIVER = 20
    PARTITIONS = 21
    PARTITIONS_RESPONSE = 22
    LOOKUP = 23
    LOOKUP_RESPONSE = 24
    SEEK = 28
    LAST_MESSAGE_ID = 29
    LAST_MESSAGE_ID_RESPONSE = 30
    ACTIVE_CONSUMER_CHANGE = 31
    TOPICS_OF_NAMESPACE = 32
    TOPICS_OF_NAMESPACE_RESPONSE = 33
    ACK_RESPONSE = 38


MESSAGE_OF: Final[Mapping[Command, str]] = {
    command: "".join(part.capitalize() for part in command.name.split("_")) for command in Command
}

# "number name type [default]"; "!" after the number marks a required field, "*" a repeated one.
FIELDS: Final[Mapping[str, Sequence[str]]] = {
    "MessageId": (
        "1! ledger_id uint64",
        "2! entry_id uint64",
        "3 partition int32 -1",
        "4 batch_index int32 -1",
        "5* ack_set int64",
    ),
    "Metadata": (
        "1! producer_name string",
        "2! sequence_id uint64",
        "3! publish_time uint64",
        "11 num_messages_in_batch int32 1",
    ),
    "Connect": ("1! client_version string", "4 protocol_version int32"),
    "Connected": (
        "1! server_version string",
        "2 protocol_version int32",
        "3 max_message_size int32",
    ),
    "Subscribe": (
        "1! topic string",
        "2! subscription string",
        "3! sub_type int32",
        "4! consumer_id uint64",
        "5! request_id uint64",
        "7 priority_level int32",
        "8 durable bool true",
        "9 start_message_id MessageId",
        "13 initial_position int32",
    ),
    "Producer": (
        "1! topic string",
        "2! producer_id uint64",
        "3! request_id uint64",
        "4 producer_name string",
        "8 epoch uint64",
        "10 access_mode int32",
    ),
    "Send": (
        "1! producer_id uint64",
        "2! sequence_id uint64",
        "3 num_messages int32 1",
        "4 transaction_least uint64",
        "5 transaction_most uint64",
        "6 highest_sequence_id uint64",
    ),
    "SendReceipt": (
        "1! producer_id uint64",
        "2! sequence_id uint64",
        "3 message_id MessageId",
        "4 highest_sequence_id uint64",
    ),
    "SendError": (
        "1! producer_id uint64",
        "2! sequence_id uint64",
        "3! error int32",
        "4! message string",
    ),
    "Message": (
        "1! consumer_id uint64",
        "2! message_id MessageId",
        "3 redelivery_count uint32",
    ),
    "Ack": (
        "1! consumer_id uint64",
        "2! ack_type int32",
        "3* message_id MessageId",
        "6 transaction_least uint64",
        "7 transaction_most uint64",
        "8 request_id uint64",
    ),
    "AckResponse": (
        "1! consumer_id uint64",
        "4 error int32",
        "5 message string",
        "6 request_id uint64",
    ),
    "Flow": ("1! consumer_id uint64", "2! message_permits uint32"),
    "Unsubscribe": ("1! consumer_id uint64", "2! request_id uint64"),
    "Success": ("1! request_id uint64",),
    "Error": ("1! request_id uint64", "2! error int32", "3! message string"),
    "CloseProducer": (
        "1! producer_id uint64",
        "2! request_id uint64",
        "3 assigned_broker_url string",
    ),
    "CloseConsumer": (
        "1! consumer_id uint64",
        "2! request_id uint64",
        "3 assigned_broker_url string",
    ),
    "ProducerSuccess": (
        "1! request_id uint64",
        "2! producer_name string",
        "4 schema_version bytes",
    ),
    "Ping": (),
    "Pong": (),
    "Redeliver": ("1! consumer_id uint64", "2* message_ids MessageId"),
    "Partitions": ("1! topic string", "2! request_id uint64"),
    "PartitionsResponse": (
        "1 partitions uint32",
        "2! request_id uint64",
        "3 response int32",
        "4 error int32",
        "5 message string",
    ),
    "Lookup": ("1! topic string", "2! request_id uint64", "3 authoritative bool"),
    "LookupResponse": (
        "1 broker_url string",
        "3 response int32",
        "4! request_id uint64",
        "5 authoritative bool",
        "6 error int32",
        "7 message string",
    ),
    "Seek": (
        "1! consumer_id uint64",
        "2! request_id uint64",
        "3 message_id MessageId",
        "4 publish_time uint64",
    ),
    "LastMessageId": ("1! consumer_id uint64", "2! request_id uint64"),
    "LastMessageIdResponse": (
        "1! message_id MessageId",
        "2! request_id uint64",
        "3 mark_delete_position MessageId",
    ),
    "ActiveConsumerChange": ("1! consumer_id uint64", "2 is_active bool"),
    "TopicsOfNamespace": ("1! request_id uint64", "2! namespace string", "3 mode int32"),
    "TopicsOfNamespaceResponse": ("1! request_id uint64", "2* topics string"),
    "BaseCommand": (
        "1! type int32",
        *(f"{command.value} {command.name.lower()} {MESSAGE_OF[command]}" for command in Command),
    ),
}
