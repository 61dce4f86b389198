"""How orders of many brokers are cut into commits that the service takes."""

from collections.abc import Mapping
from typing import Protocol

from loadmanager.core.ids import BrokerId
from loadmanager.ports import CoordinationError, Create, SetData

_COMMIT_NODES = 100
_ORDERS_FRACTION = 0.9


class Rider(Protocol):
    """Something else that is written with orders: both are done, or neither."""

    @property
    def operation(self) -> Create | SetData:
        """What is to be written."""

    def refused(self, cause: CoordinationError) -> None:
        """Make the operation another one, for the next try; or raise ``cause``."""

    def arrived(self) -> None:
        """Take note that it was written."""


def is_last(
    chunk: list[BrokerId], contents: Mapping[BrokerId, bytes], rider: Rider, most_bytes: int
) -> bool:
    """Say whether this chunk is the last one, and has room for the rider."""
    size = sum(len(contents[broker]) for broker in chunk) + len(rider.operation.data)
    return len(chunk) == len(contents) and size <= most_bytes


def largest_orders_bytes(max_request_bytes: int) -> int:
    """Return how much the orders of one broker may need, in a request of so many bytes."""
    return int(_ORDERS_FRACTION * max_request_bytes)


def next_chunk(contents: Mapping[BrokerId, bytes], most_bytes: int) -> list[BrokerId]:
    """Return the next brokers whose orders fit one commit, in the given order."""
    chunk: list[BrokerId] = []
    size = 0
    for broker, content in contents.items():
        size += len(content)
        if chunk and (size > most_bytes or len(chunk) == _COMMIT_NODES):
            break
        chunk.append(broker)
    return chunk
