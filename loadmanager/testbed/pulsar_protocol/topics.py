"""The open topics: opened for clients, closed with their bundle."""

import asyncio
from collections.abc import Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import structlog

from loadmanager.core.hashing import HashName, position
from loadmanager.core.ids import BundleId, Namespace, TopicName
from loadmanager.testbed.broker.changes import BundleLoaded, Change, EndReason, ServingEnded
from loadmanager.testbed.broker.running_broker import RunningBroker
from loadmanager.testbed.broker.traffic import Clients
from loadmanager.testbed.pulsar_protocol.clients import Refused
from loadmanager.testbed.pulsar_protocol.handing_over import HandOver, close_clients
from loadmanager.testbed.pulsar_protocol.protocol import ServerError
from loadmanager.testbed.pulsar_protocol.topic import ServedTopic
from loadmanager.testbed.pulsar_protocol.topic_log import MAX_LOG_BYTES, Fenced, TopicLog

log = structlog.get_logger()

HOLD_S: Final = 2.0
"""How long a client is held whose topic is not served here: its bundle may be on the way."""

SAVE_EVERY_S: Final = 0.2
"""How much acknowledging a killed broker may forget; those messages are delivered again."""

IDLE_S: Final = 10.0

_PREFIX: Final = "topic-"
_MAX_NAME_BYTES: Final = 240


class Topics:
    """The open topics of one broker.

    Args:
        broker: says what is served.
        ledger: the folder of all logs.
        hand_over: directs clients to the new owner of their topic.
        hash_name: the cluster's.
        hold_s: see `HOLD_S`.
        max_log_bytes: how much of a topic may wait to be consumed.
        idle_s: how long a topic stays open without a client.
    """

    def __init__(
        self,
        broker: RunningBroker,
        ledger: Path,
        hand_over: HandOver,
        *,
        hash_name: HashName,
        hold_s: float = HOLD_S,
        max_log_bytes: int = MAX_LOG_BYTES,
        idle_s: float = IDLE_S,
    ) -> None:
        self._broker = broker
        self._idle_s = idle_s
        self._max_log_bytes = max_log_bytes
        self._hash_name: HashName = hash_name
        self._ledger = ledger
        self._hand_over = hand_over
        self._hold_s = hold_s
        self._open: dict[TopicName, ServedTopic] = {}
        self._loaded = asyncio.Event()
        self._announcing: set[asyncio.Task[None]] = set()

    async def opened(self, name: TopicName) -> ServedTopic:
        """Return a topic, opened if need be; wait for a moment if it is not served here yet.

        Raises:
            Refused: it is not served here, or its log is not to be had.
        """
        try:
            async with asyncio.timeout(self._hold_s):
                while (grant := self._broker.grant(name)) is None:
                    await self._loaded.wait()
        except TimeoutError:
            text = f"{name} is not served here; look its owner up again"
            raise Refused(ServerError.SERVICE_NOT_READY, text) from None
        topic = self._open.get(name)
        if topic is None:
            topic = self._opened_log(name, grant.bundle, grant.fencing_token)
            self._open[name] = topic
        return topic

    def is_here(self, name: TopicName) -> bool:
        """Tell whether a topic is served here now, open or not."""
        return self._broker.grant(name) is not None

    def serves(self, topic: ServedTopic) -> bool:
        """Tell whether a topic that was opened is still served, leases checked."""
        return self._broker.grant(topic.name) is not None and not topic.closed

    def count_clients(self, topic: ServedTopic) -> None:
        """Report connected clients to the broker's statistics."""
        clients = Clients(len(topic.producers), len(topic.consumers))
        self._broker.count_clients(topic.name, clients)

    def heard(self, change: Change) -> None:
        """Follow what happens to bundles. It is called in the middle, before an unload ends."""
        if isinstance(change, BundleLoaded):
            self._loaded.set()
            self._loaded = asyncio.Event()
            # The change is reported before it takes effect.
            asyncio.get_running_loop().call_soon(self._follow, change.bundle)
        elif isinstance(change, ServingEnded) and change.why is not EndReason.REGRANTED:
            self._end(change.bundle, handed_over=change.why is EndReason.UNLOADED)

    def lost(self, topic: ServedTopic, error: Exception) -> None:
        """Close a topic whose log can no longer be written; its clients look it up again."""
        log.warning("topic.log.write_failed", topic=str(topic.name), why=str(error))
        self._close([topic])
        close_clients(topic)

    def names(self, namespace: Namespace) -> list[str]:
        """Return all persistent topics of a namespace that have a log."""
        folder = self._ledger / "persistent" / namespace
        found = folder.iterdir() if folder.is_dir() else iter(())
        locals_ = sorted(unquote(one.name.removeprefix(_PREFIX)) for one in found)
        return [f"persistent://{namespace}/{local}" for local in locals_]

    async def save_regularly(self) -> None:
        """Write down acknowledgements, again and again. Runs until cancelled.

        An idle topic is closed, for each open one holds a file;
        it is opened again for the next client.
        """
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            for topic in [*self._open.values()]:
                if self.serves(topic):
                    self._save(topic)

    def _save(self, topic: ServedTopic) -> None:
        used = topic.producers or topic.consumers
        topic.idle_rounds = 0 if used else topic.idle_rounds + 1
        if topic.idle_rounds * SAVE_EVERY_S > self._idle_s:
            self._close([topic])
            return
        try:
            topic.save()
        except (Fenced, OSError) as error:
            self.lost(topic, error)

    async def close(self) -> None:
        """Close all topics; clients are no longer directed to new owners."""
        self._close([*self._open.values()])
        for task in [*self._announcing]:
            task.cancel()
        await asyncio.gather(*self._announcing, return_exceptions=True)

    def _opened_log(self, name: TopicName, bundle: BundleId, token: int) -> ServedTopic:
        encoded = _PREFIX + quote(name.local, safe="")
        if len(encoded) > _MAX_NAME_BYTES:
            text = f"{name}: the name is too long for a file"
            raise Refused(ServerError.INVALID_TOPIC_NAME, text)
        folder = self._ledger / name.domain / name.namespace / encoded
        try:
            opened = TopicLog(folder, token, max_bytes=self._max_log_bytes)
        except Fenced as error:
            raise Refused(ServerError.SERVICE_NOT_READY, str(error)) from None
        except OSError as error:
            raise Refused(ServerError.PERSISTENCE, f"{name}: {error}") from None
        at = position(name, self._hash_name)
        return ServedTopic(name, at, bundle, opened, partial(self._broker.count_out, name))

    def _follow(self, changed: BundleId) -> None:
        """Find the topics around a bundle in the bundles they are served in now."""
        for topic in self._open.values():
            grant = self._broker.last_grant(topic.name) if topic.is_in(changed) else None
            if grant is not None and grant.bundle != topic.bundle:
                topic.bundle = grant.bundle
                self.count_clients(topic)

    def _end(self, bundle: BundleId, *, handed_over: bool) -> None:
        self._follow(bundle)
        gone = [topic for topic in self._open.values() if topic.bundle == bundle]
        self._close(gone)
        next_url = self._broker.next_owner_url(bundle)
        if handed_over and not next_url:
            self._begin(self._hand_over.notify(bundle, gone))
            return
        if next_url:
            log.info(
                "bundle.clients.forwarded", bundle=bundle, topics=len(gone), broker_url=next_url
            )
        # Not in the midst of it: the message that ended the bundle is acknowledged first.
        for topic in gone:
            asyncio.get_running_loop().call_soon(close_clients, topic, next_url or None)

    def _close(self, topics: Iterable[ServedTopic]) -> None:
        for topic in topics:
            self._open.pop(topic.name, None)
            try:
                topic.close()
            except OSError as error:
                log.warning("topic.log.save_failed", topic=str(topic.name), why=str(error))

    def _begin(self, notifying: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(notifying)
        self._announcing.add(task)
        task.add_done_callback(self._announcing.discard)
