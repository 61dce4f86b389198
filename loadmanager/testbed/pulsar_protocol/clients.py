"""Producers and consumers as a topic sees them: what is at the other end of a connection."""

from dataclasses import dataclass, field
from typing import Protocol

from loadmanager.core.errors import LoadManagerError
from loadmanager.testbed.pulsar_protocol.fields import Command
from loadmanager.testbed.pulsar_protocol.protocol import UNASKED, ServerError, encode


class Refused(LoadManagerError):
    """A command cannot be obeyed; ``error`` is the code that clients act on."""

    def __init__(self, error: ServerError, text: str) -> None:
        super().__init__(text)
        self.error = error


class Line(Protocol):
    """A client's connection, as a topic uses it."""

    @property
    def congested(self) -> bool:
        """Whether the client is slow to read; nothing more is sent until it has caught up."""

    def send(self, command: bytes, payload: bytes = b"") -> None:
        """Send an encoded command; to a connection that is gone, nothing."""

    def drop_producer(self, producer_id: int) -> None:
        """Forget a producer that the broker has closed."""

    def drop_consumer(self, consumer_id: int) -> None:
        """Forget a consumer that the broker has closed."""


@dataclass(slots=True, eq=False, kw_only=True)
class Producer:
    """One producer on one connection. ``epoch`` counts its connections."""

    line: Line
    producer_id: int
    name: str
    epoch: int = 0

    def close(self, broker_url: str | None = None) -> None:
        """Have the client recreate it: at ``broker_url``, or after a lookup."""
        ids = {"producer_id": self.producer_id, "request_id": UNASKED}
        self.line.drop_producer(self.producer_id)
        self.line.send(encode(Command.CLOSE_PRODUCER, **ids, **_assigned(broker_url)))


@dataclass(slots=True, eq=False, kw_only=True)
class Consumer:
    """One consumer on one connection.

    ``permits`` are messages it will take; ``unacked`` are entries it was sent, in order.
    Lower ``priority`` comes first.
    """

    line: Line
    consumer_id: int
    name: str
    priority: int = 0
    permits: int = 0
    unacked: dict[int, None] = field(default_factory=dict)

    def close(self, broker_url: str | None = None) -> None:
        """Have the client subscribe again: at ``broker_url``, or after a lookup."""
        ids = {"consumer_id": self.consumer_id, "request_id": UNASKED}
        self.line.drop_consumer(self.consumer_id)
        self.line.send(encode(Command.CLOSE_CONSUMER, **ids, **_assigned(broker_url)))

    def tell_active(self, *, active: bool) -> None:
        """Tell a consumer of a failover subscription whether it is the one that gets messages."""
        change = {"consumer_id": self.consumer_id, "is_active": active}
        self.line.send(encode(Command.ACTIVE_CONSUMER_CHANGE, **change))


def _assigned(broker_url: str | None) -> dict[str, str]:
    return {} if broker_url is None else {"assigned_broker_url": broker_url}
