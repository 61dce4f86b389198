"""Requests that need no producer or consumer: owners, partitions, names of topics."""

from typing import Any, Final

from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import TopicName, parse_namespace
from loadmanager.testbed.pulsar_protocol.clients import Line, Refused
from loadmanager.testbed.pulsar_protocol.fields import Command
from loadmanager.testbed.pulsar_protocol.names import topic_of
from loadmanager.testbed.pulsar_protocol.protocol import ServerError, encode
from loadmanager.testbed.pulsar_protocol.sidecar import SidecarClient
from loadmanager.testbed.pulsar_protocol.topics import Topics

_CONNECT: Final = 1
_LOOKUP_FAILED: Final = 2
_PARTITIONS_FAILED: Final = 1
_NON_PERSISTENT: Final = 1


class Asking:
    """Answers lookups over the binary protocol.

    Without a sidecar the broker has only its own bundles, and no topic has
    partitions.

    Args:
        line: the connection.
        topics: the broker's.
        directory: the sidecar, None if there is none.
        own_url: this broker's address.
    """

    def __init__(
        self, line: Line, topics: Topics, directory: SidecarClient | None, own_url: str
    ) -> None:
        self._line = line
        self._topics = topics
        self._directory = directory
        self._own_url = own_url

    async def lookup(self, asked: Any) -> None:
        """Answer with a topic's owner; never a redirect, since the sidecar follows those."""
        try:
            broker_url = await self._broker_url(topic_of(asked.topic))
        except Refused as refused:
            failed = {"response": _LOOKUP_FAILED, "error": refused.error, "message": str(refused)}
            self._line.send(encode(Command.LOOKUP_RESPONSE, request_id=asked.request_id, **failed))
            return
        found = {"response": _CONNECT, "broker_url": broker_url, "authoritative": True}
        self._line.send(encode(Command.LOOKUP_RESPONSE, request_id=asked.request_id, **found))

    async def partitions(self, asked: Any) -> None:
        """Tell how many partitions a topic has."""
        answer: dict[str, Any]
        try:
            answer = {"response": 0, "partitions": await self._partitions(topic_of(asked.topic))}
        except Refused as refused:
            answer = {
                "response": _PARTITIONS_FAILED,
                "error": refused.error,
                "message": str(refused),
            }
        ids = {"request_id": asked.request_id}
        self._line.send(encode(Command.PARTITIONS_RESPONSE, **ids, **answer))

    async def topics_of_namespace(self, asked: Any) -> None:
        """Tell the topics of a namespace that have a log in the shared folder.

        Raises:
            Refused: the name is no namespace's.
        """
        try:
            namespace = parse_namespace(asked.namespace)
        except InvalidName as error:
            raise Refused(ServerError.INVALID_TOPIC_NAME, str(error)) from None
        names = [] if asked.mode == _NON_PERSISTENT else self._topics.names(namespace)
        ids = {"request_id": asked.request_id}
        self._line.send(encode(Command.TOPICS_OF_NAMESPACE_RESPONSE, **ids, topics=names))

    async def _broker_url(self, topic: TopicName) -> str:
        if self._directory is None:
            if self._topics.is_here(topic):
                return self._own_url
            text = f"{topic} is not served here, and no sidecar is configured to name its owner"
            raise Refused(ServerError.SERVICE_NOT_READY, text)
        owner = await self._directory.owner(topic)
        if owner is None:
            raise Refused(ServerError.SERVICE_NOT_READY, f"the sidecar names no owner of {topic}")
        return owner.broker_url

    async def _partitions(self, topic: TopicName) -> int:
        if self._directory is None:
            return 0
        count = await self._directory.partitions(topic)
        if count is None:
            text = f"the sidecar does not answer for the partitions of {topic}"
            raise Refused(ServerError.SERVICE_NOT_READY, text)
        return count
