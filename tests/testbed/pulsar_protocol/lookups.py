"""Requests that need no producer or consumer: owners, partitions, names of topics."""

from typing import Any, Final

from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import parse_namespace
from tests.testbed.pulsar_protocol.clients import Line, Refused, topic_of
from tests.testbed.pulsar_protocol.fields import Command
from tests.testbed.pulsar_protocol.protocol import ServerError
from tests.testbed.pulsar_protocol.topics import Topics

_CONNECT: Final = 1
_LOOKUP_FAILED: Final = 2
_PARTITIONS_FAILED: Final = 1
_NON_PERSISTENT: Final = 1


class Lookups:
    """Answers lookups of one connection by asking the sidecar.

    Without a sidecar the broker knows only its own bundles, and no topic has partitions.
    """

    def __init__(self, line: Line, topics: Topics) -> None:
        self._line = line
        self._topics = topics

    async def lookup(self, asked: Any) -> None:
        """Answer with the owner of a topic; never with a redirect, which the sidecar follows."""
        try:
            url = await self._broker_url(asked.topic)
            answer = {"response": _CONNECT, "broker_url": url, "authoritative": True}
        except Refused as refused:
            answer = {"response": _LOOKUP_FAILED, **refused.fields}
        self._line.send(Command.LOOKUP_RESPONSE, request_id=asked.request_id, **answer)

    async def partitions(self, asked: Any) -> None:
        """Answer with the number of partitions of a topic."""
        try:
            answer = {"response": 0, "partitions": await self._partitions(asked.topic)}
        except Refused as refused:
            answer = {"response": _PARTITIONS_FAILED, **refused.fields}
        self._line.send(Command.PARTITIONS_RESPONSE, request_id=asked.request_id, **answer)

    async def topics_of_namespace(self, asked: Any) -> None:
        """Answer with the topics of a namespace that have a log in the shared folder.

        Raises:
            Refused: the name of the namespace is invalid.
        """
        try:
            namespace = parse_namespace(asked.namespace)
        except InvalidName as error:
            raise Refused(ServerError.INVALID_TOPIC_NAME, str(error)) from None
        names = [] if asked.mode == _NON_PERSISTENT else self._topics.names(namespace)
        ids = {"request_id": asked.request_id}
        self._line.send(Command.TOPICS_OF_NAMESPACE_RESPONSE, **ids, topics=names)

    async def _broker_url(self, name: str) -> str:
        topic, sidecar = topic_of(name), self._topics.sidecar
        if sidecar is None:
            if self._topics.is_here(topic):
                return self._topics.own_url
            text = f"{topic} is not served here, and no sidecar is configured to name its owner"
            raise Refused(ServerError.SERVICE_NOT_READY, text)
        owner = await sidecar.owner(topic)
        if owner is None:
            raise Refused(ServerError.SERVICE_NOT_READY, f"the sidecar names no owner of {topic}")
        return owner.broker_url

    async def _partitions(self, name: str) -> int:
        topic, sidecar = topic_of(name), self._topics.sidecar
        if sidecar is None:
            return 0
        count = await sidecar.partitions(topic)
        if count is None:
            text = f"the sidecar does not answer for the partitions of {topic}"
            raise Refused(ServerError.SERVICE_NOT_READY, text)
        return count
