"""How many partitions a topic has, in the form of Pulsar's partitioned-topics nodes."""

from loadmanager.core.bounds import PARTITIONS
from loadmanager.core.fields import parse_fields, to_json


def encode_partitions(partitions: int) -> bytes:
    """Return the content of a partitioned topic's node."""
    return to_json({"partitions": partitions})


def decode_partitions(where: str, data: bytes) -> int:
    """Return the number of partitions in a node's content.

    Raises:
        MalformedContent: there is no whole number of partitions within its bound.
    """
    return parse_fields(where, data).count("partitions", bound=PARTITIONS)
