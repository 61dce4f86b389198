"""How orders of many brokers are cut into commits that the service takes."""

from collections.abc import Mapping

from loadmanager.core.ids import BrokerId

_COMMIT_NODES = 100
_ORDERS_FRACTION = 0.9


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
