"""Producers and consumers, each on one connection, and what their commands have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

from loadmanager.core.errors import InvalidName, LoadManagerError
from loadmanager.core.ids import TopicName, parse_topic
from tests.testbed.pulsar_protocol.fields import Command
from tests.testbed.pulsar_protocol.protocol import UNASKED, ServerError

if TYPE_CHECKING:
    from tests.testbed.pulsar_protocol.topic import ServedTopic
    from tests.testbed.pulsar_protocol.topics import Topics

MAX_CLIENTS: Final = 10_000
"""Producers on one connection, and consumers on one connection."""


class Refused(LoadManagerError):
    """The broker refuses a command. ``error`` is the code that clients act on."""

    def __init__(self, error: ServerError, text: str) -> None:
        super().__init__(text)
        self.error = error

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a reply that reports the error."""
        return {"error": self.error, "message": str(self)}


class Line(Protocol):
    """A client's connection, as producers and consumers use it."""

    @property
    def congested(self) -> bool:
        """Whether the client reads slowly; messages are held back until its buffer is drained."""

    def send(self, command: Command, payload: bytes = b"", /, **fields: Any) -> None:
        """Send a command; does nothing on a closed connection."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Client:
    """A producer or consumer on one connection. ``forget`` removes it from its connection."""

    line: Line
    client_id: int
    forget: Callable[[], object]
    closing: ClassVar[tuple[Command, str]]
    """The command that closes it, and the field of its id in this command."""

    def close(self, broker_url: str | None = None) -> None:
        """Have the client create it again: at ``broker_url``, or after a lookup."""
        self.forget()
        command, id_field = self.closing
        assigned = {} if broker_url is None else {"assigned_broker_url": broker_url}
        ids = {id_field: self.client_id, "request_id": UNASKED}
        self.line.send(command, **ids, **assigned)


@dataclass(slots=True, eq=False, kw_only=True)
class Producer(_Client):
    """One producer on one connection. ``epoch`` counts the connections that it made."""

    closing = Command.CLOSE_PRODUCER, "producer_id"

    name: str
    topic: "ServedTopic"
    epoch: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Consumer(_Client):
    """One consumer on one connection.

    ``permits`` is the number of messages that it accepts. ``unacked`` are the entries that were
    sent to it, in order. The lowest ``priority`` comes first.
    """

    closing = Command.CLOSE_CONSUMER, "consumer_id"

    priority: int = 0
    permits: int = 0
    unacked: dict[int, None] = field(default_factory=dict)


_T = TypeVar("_T")


class ClientsOfConnection(ABC, Generic[_T]):
    """The producers, or the consumers, of one connection, by id.

    Args:
        line: the connection.
        topics: the topics of the broker.
    """

    kind: str
    """``producer`` or ``consumer``, for error messages."""

    def __init__(self, line: Line, topics: "Topics") -> None:
        self._line = line
        self._topics = topics
        self._open: dict[int, _T] = {}
        self._awaited: dict[int, int] = {}

    def end(self) -> None:
        """Remove all of them, because the connection is closed."""
        for client_id in [*self._open]:
            self._remove(client_id)

    def _await(self, client_id: int, request_id: int) -> None:
        """Note at once that a client waits for its topic: it may be closed while it waits.

        Raises:
            Refused: the connection has too many.
        """
        if len(self._open) + len(self._awaited) >= MAX_CLIENTS:
            text = f"the connection has {MAX_CLIENTS} {self.kind}s already"
            raise Refused(ServerError.TOO_MANY_REQUESTS, text)
        self._awaited[client_id] = request_id

    async def _topic(self, client_id: int, asked: Any) -> "ServedTopic":
        """Return the requested topic as soon as it is served here.

        Raises:
            Refused: it is not, or the client was closed meanwhile.
        """
        try:
            topic = await self._topics.opened(topic_of(asked.topic))
        finally:
            present = self._awaited.get(client_id) == asked.request_id
            if present:
                del self._awaited[client_id]
        if not present:
            raise Refused(ServerError.SERVICE_NOT_READY, f"the {self.kind} was closed meanwhile")
        return topic

    def _close(self, client_id: int, request_id: int) -> None:
        """Close a client; an unknown one is closed already."""
        self._awaited.pop(client_id, None)
        self._remove(client_id)
        self._line.send(Command.SUCCESS, request_id=request_id)

    def _forget(self, client_id: int) -> Callable[[], object]:
        return lambda: self._open.pop(client_id, None)

    @abstractmethod
    def _remove(self, client_id: int) -> None:
        """Remove a client from the connection and from its topic, if there is one."""


def topic_of(text: str) -> TopicName:
    """Return the topic that a client names.

    Raises:
        Refused: the name is invalid, or its domain is not supported.
    """
    try:
        topic = parse_topic(text)
    except InvalidName as error:
        raise Refused(ServerError.INVALID_TOPIC_NAME, str(error)) from None
    if topic.domain == "topic":
        raise Refused(ServerError.NOT_ALLOWED, f"{topic}: scalable topics are not supported")
    return topic
