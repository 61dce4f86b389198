"""Directing clients to the new owner when a bundle has left this broker.

The clients of a bundle get the new owner's address in the command that closes them,
so they need no lookup and no pause before one. The address comes from the sidecar, which
may have it before the new owner serves: a client that comes too early is held there until
the bundle is loaded.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from loadmanager.core.ids import BundleId, TopicName
from loadmanager.testbed.pulsar_protocol.sidecar import TopicOwner
from loadmanager.testbed.pulsar_protocol.topic import ServedTopic

log = structlog.get_logger()

_ASK_AGAIN_S: Final = 0.01
_MOST_S: Final = 3.0


class Owners(Protocol):
    """Finds the owner of a topic."""

    async def owner(self, topic: TopicName) -> TopicOwner | None:
        """Return the owner of ``topic``, None if it is unknown."""


class HandOver:
    """Closes the clients of topics that have left.

    Args:
        owners: finds the new owner; None if there is no such source.
        own_url: this broker's address; as an answer it is out of date, unless
            ``serves`` says so.
        serves: returns whether a topic is served here now.
    """

    def __init__(
        self,
        owners: Owners | None,
        own_url: str,
        serves: Callable[[TopicName], bool],
    ) -> None:
        self._owners = owners
        self._own_url = own_url
        self._serves = serves

    async def notify(self, bundle: BundleId, topics: Sequence[ServedTopic]) -> None:
        """Close all clients of ``topics``, which were in ``bundle``, naming their new owner."""
        left = [topic for topic in topics if topic.producers or topic.consumers]
        while left:
            owner = await self._new_owner(left[0].name)
            # One answer is for all topics of the bundle that it is about: it may have been cut.
            of_bundle = owner.bundle if owner is not None and owner.bundle else bundle
            directed = [topic for topic in left if topic.is_in(of_bundle)] or left[:1]
            url = None if owner is None else owner.broker_url
            for topic in directed:
                close_clients(topic, url)
            log.info(
                "bundle.clients.redirected", bundle=of_bundle, topics=len(directed), broker_url=url
            )
            left = [topic for topic in left if topic not in directed]

    async def _new_owner(self, topic: TopicName) -> TopicOwner | None:
        """Ask until the answer is no longer ourselves; None if it takes too long."""
        if self._owners is None:
            return None
        try:
            async with asyncio.timeout(_MOST_S):
                while True:
                    owner = await self._owners.owner(topic)
                    if owner is None or owner.broker_url != self._own_url or self._serves(topic):
                        return owner
                    await asyncio.sleep(_ASK_AGAIN_S)
        except TimeoutError:
            return None


def close_clients(topic: ServedTopic, broker_url: str | None = None) -> None:
    """Close all clients of a topic that is closed itself."""
    for producer in topic.producers.values():
        producer.close(broker_url)
    for consumer in topic.consumers:
        consumer.close(broker_url)
    topic.producers.clear()
    topic.subscriptions.clear()
