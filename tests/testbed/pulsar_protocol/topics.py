"""The open topics: opened for clients, closed with their bundle.

When a bundle moves, the commands that close its clients carry the address of the new owner, so
that clients need no lookup and no pause before one. The sidecar may know the address before the
new owner serves: that broker holds clients that come too early until the bundle is loaded.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import structlog

from loadmanager.core.hashing import DEFAULT_HASH, HashName, position
from loadmanager.core.ids import BundleId, Namespace, TopicName
from loadmanager.reference_broker.changes import BundleLoaded, Change, EndReason, ServingEnded
from loadmanager.reference_broker.memory_broker import MemoryBroker
from tests.testbed.pulsar_protocol.clients import Refused
from tests.testbed.pulsar_protocol.protocol import ServerError
from tests.testbed.pulsar_protocol.sidecar_client import SidecarClient, TopicOwner
from tests.testbed.pulsar_protocol.topic import ServedTopic
from tests.testbed.pulsar_protocol.topic_log import MAX_LOG_BYTES, Fenced, TopicLog

log = structlog.get_logger()

SAVE_EVERY_S: Final = 0.2
"""How much acknowledging a killed broker may forget; those messages are delivered again."""

_PREFIX: Final = "topic-"
_MAX_NAME_BYTES: Final = 240
_ASK_AGAIN_S: Final = 0.01
_ASK_FOR_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarServerOptions:
    """Settings of the server for Pulsar's clients.

    ``own_url`` is ``pulsar://host:port`` as the sidecar answers lookups with it. ``ledger`` is the
    folder of the logs; brokers that share it keep the messages when a bundle moves.
    ``sidecar_url`` is "" without a sidecar. A client of a topic that is not served here is held
    for ``hold_s``, because the bundle may be on the way. ``max_log_bytes`` of a topic may wait to
    be consumed. A topic without clients stays open for ``idle_s``.
    """

    own_url: str
    ledger: Path
    version: str
    hash_name: HashName = DEFAULT_HASH
    sidecar_url: str = ""
    sidecar_token: str = ""
    cpu_s_per_message: float = 0.0
    hold_s: float = 2.0
    max_log_bytes: int = MAX_LOG_BYTES
    idle_s: float = 10.0


class Topics:
    """The open topics of one broker, and what all its connections share.

    Args:
        broker: the state of the served bundles.
        options: the settings of the server.
    """

    def __init__(self, broker: MemoryBroker, options: PulsarServerOptions) -> None:
        self.broker = broker
        self.own_url = options.own_url
        self.cpu_s_per_message = options.cpu_s_per_message
        self.turn = asyncio.Lock()
        """Held while a message is handled: one at a time, as one core would."""
        url = options.sidecar_url
        self.sidecar = SidecarClient(url, options.sidecar_token) if url else None
        self._options = options
        self._open: dict[TopicName, ServedTopic] = {}
        self._loaded = asyncio.Event()
        self._redirecting: set[asyncio.Task[None]] = set()
        self._producer_numbers = count()

    def new_producer_name(self) -> str:
        """Return a name that no other broker process gives to a producer."""
        return f"{self.broker.incarnation}-{next(self._producer_numbers)}"

    async def opened(self, name: TopicName) -> ServedTopic:
        """Return a topic, opened if necessary; wait a moment if it is not served here yet.

        Raises:
            Refused: it is not served here, or its log cannot be opened.
        """
        try:
            async with asyncio.timeout(self._options.hold_s):
                while (grant := self.broker.grant(name)) is None:
                    await self._loaded.wait()
        except TimeoutError:
            text = f"{name} is not served here; look its owner up again"
            raise Refused(ServerError.SERVICE_NOT_READY, text) from None
        topic = self._open.get(name)
        if topic is None:
            opened = self._open_log(name, grant.fencing_token)
            at = position(name, self._options.hash_name)
            delivered = partial(self.broker.count_out, name)
            topic = self._open[name] = ServedTopic(name, at, grant.bundle, opened, delivered)
        return topic

    def is_here(self, name: TopicName) -> bool:
        """Return whether a topic is served here now, open or not."""
        return self.broker.grant(name) is not None

    def serves(self, topic: ServedTopic) -> bool:
        """Return whether an opened topic is still served, after a check of the leases."""
        return self.is_here(topic.name) and not topic.closed

    def count_clients(self, topic: ServedTopic) -> None:
        """Report the connected clients to the broker's statistics."""
        producers, consumers = len(topic.producers), len(topic.consumers)
        self.broker.count_clients(topic.name, producers=producers, consumers=consumers)

    def on_change(self, change: Change) -> None:
        """Follow a change of the bundles. It is called during the change, before an unload ends."""
        if isinstance(change, BundleLoaded):
            self._loaded.set()
            self._loaded = asyncio.Event()
            # The change is reported before it takes effect.
            asyncio.get_running_loop().call_soon(self._update_bundles, change.bundle)
        elif isinstance(change, ServingEnded) and change.why is not EndReason.REGRANTED:
            self._end(change.bundle, handed_over=change.why is EndReason.UNLOADED)

    def lost(self, topic: ServedTopic, error: Exception) -> None:
        """Close a topic whose log cannot be written any more; its clients look it up again."""
        log.warning("topic.log.write_failed", topic=str(topic.name), why=str(error))
        self._close([topic])
        topic.close_clients()

    def names(self, namespace: Namespace) -> list[str]:
        """Return all persistent topics of a namespace that have a log."""
        folder = self._options.ledger / "persistent" / namespace
        found = folder.iterdir() if folder.is_dir() else iter(())
        locals_ = sorted(unquote(one.name.removeprefix(_PREFIX)) for one in found)
        return [f"persistent://{namespace}/{local}" for local in locals_]

    async def save_regularly(self) -> None:
        """Save acknowledgements repeatedly. Runs until cancelled.

        An idle topic is closed, because each open one holds a file; it is opened again for the
        next client.
        """
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            for topic in [*self._open.values()]:
                if self.serves(topic):
                    self._save(topic)

    async def close(self) -> None:
        """Close all topics; clients are not redirected any more."""
        self._close([*self._open.values()])
        for task in [*self._redirecting]:
            task.cancel()
        await asyncio.gather(*self._redirecting, return_exceptions=True)

    def _save(self, topic: ServedTopic) -> None:
        used = topic.producers or topic.consumers
        topic.idle_rounds = 0 if used else topic.idle_rounds + 1
        if topic.idle_rounds * SAVE_EVERY_S > self._options.idle_s:
            self._close([topic])
            return
        try:
            topic.save()
        except (Fenced, OSError) as error:
            self.lost(topic, error)

    def _open_log(self, name: TopicName, token: int) -> TopicLog:
        encoded = _PREFIX + quote(name.local, safe="")
        if len(encoded) > _MAX_NAME_BYTES:
            text = f"{name}: the name is too long for a file"
            raise Refused(ServerError.INVALID_TOPIC_NAME, text)
        folder = self._options.ledger / name.domain / name.namespace / encoded
        try:
            return TopicLog(folder, token, max_bytes=self._options.max_log_bytes)
        except Fenced as error:
            raise Refused(ServerError.SERVICE_NOT_READY, str(error)) from None
        except OSError as error:
            raise Refused(ServerError.PERSISTENCE, f"{name}: {error}") from None

    def _update_bundles(self, changed: BundleId) -> None:
        """Set the bundle of each topic in ``changed`` to the one that serves it now."""
        for topic in self._open.values():
            grant = self.broker.last_grant(topic.name) if topic.is_in(changed) else None
            if grant is not None and grant.bundle != topic.bundle:
                topic.bundle = grant.bundle
                self.count_clients(topic)

    def _end(self, bundle: BundleId, *, handed_over: bool) -> None:
        self._update_bundles(bundle)
        gone = [topic for topic in self._open.values() if topic.bundle == bundle]
        self._close(gone)
        next_url = self.broker.next_owner_url(bundle)
        if handed_over and not next_url:
            task = asyncio.get_running_loop().create_task(self._redirect(bundle, gone))
            self._redirecting.add(task)
            task.add_done_callback(self._redirecting.discard)
            return
        if next_url:
            log.info(
                "bundle.clients.forwarded", bundle=bundle, topics=len(gone), broker_url=next_url
            )
        # Not during the change: the message that ended the bundle is acknowledged first.
        for topic in gone:
            asyncio.get_running_loop().call_soon(topic.close_clients, next_url or None)

    async def _redirect(self, bundle: BundleId, topics: Sequence[ServedTopic]) -> None:
        """Close all clients of ``topics``, which were in ``bundle``, with their new owner."""
        left = [topic for topic in topics if topic.producers or topic.consumers]
        while left:
            owner = await self._new_owner(left[0].name)
            # An answer is valid for all topics of its bundle, which may be a part after a split.
            of_bundle = owner.bundle if owner is not None and owner.bundle else bundle
            redirected = [topic for topic in left if topic.is_in(of_bundle)] or left[:1]
            url = None if owner is None else owner.broker_url
            for topic in redirected:
                topic.close_clients(url)
            numbers = {"topics": len(redirected), "broker_url": url}
            log.info("bundle.clients.redirected", bundle=of_bundle, **numbers)
            left = [topic for topic in left if topic not in redirected]

    async def _new_owner(self, topic: TopicName) -> TopicOwner | None:
        """Ask until the answer is another broker; return None if that takes too long.

        This broker's own address as an answer is out of date, unless it serves the topic again.
        """
        if self.sidecar is None:
            return None
        try:
            async with asyncio.timeout(_ASK_FOR_S):
                while True:
                    owner = await self.sidecar.owner(topic)
                    if owner is None or owner.broker_url != self.own_url or self.is_here(topic):
                        return owner
                    await asyncio.sleep(_ASK_AGAIN_S)
        except TimeoutError:
            return None

    def _close(self, topics: Iterable[ServedTopic]) -> None:
        for topic in topics:
            self._open.pop(topic.name, None)
            try:
                topic.close()
            except OSError as error:
                log.warning("topic.log.save_failed", topic=str(topic.name), why=str(error))
