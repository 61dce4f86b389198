"""The in-memory broker's server for Pulsar's clients: a socket, and what handles its requests."""

import asyncio
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadmanager.core.hashing import DEFAULT_HASH, HashName
from loadmanager.core.ids import TopicName
from loadmanager.testbed.broker.changes import Change
from loadmanager.testbed.broker.running_broker import RunningBroker
from loadmanager.testbed.broker.server import spend_cpu
from loadmanager.testbed.pulsar_protocol.asking import Asking
from loadmanager.testbed.pulsar_protocol.connection import Connection
from loadmanager.testbed.pulsar_protocol.consuming import Consuming
from loadmanager.testbed.pulsar_protocol.handing_over import HandOver
from loadmanager.testbed.pulsar_protocol.producing import Namer, Producing, Work
from loadmanager.testbed.pulsar_protocol.session import ClientSession
from loadmanager.testbed.pulsar_protocol.sidecar import SidecarClient
from loadmanager.testbed.pulsar_protocol.topic_log import MAX_LOG_BYTES
from loadmanager.testbed.pulsar_protocol.topics import HOLD_S, IDLE_S, Topics

MAX_CONNECTIONS: Final = 5_000
"""Clients at a time; more are cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarServerOptions:
    """How the server works.

    ``own_url`` is ``pulsar://host:port`` as the sidecar answers lookups with it.
    ``ledger`` is the folder of the logs; brokers that share it keep what was sent when a
    bundle moves. ``sidecar_url`` is "" where there is none.
    """

    own_url: str
    ledger: Path
    incarnation: str
    version: str
    hash_name: HashName = DEFAULT_HASH
    sidecar_url: str = ""
    sidecar_token: str = ""
    cpu_s_per_message: float = 0.0
    hold_s: float = HOLD_S
    max_log_bytes: int = MAX_LOG_BYTES
    idle_s: float = IDLE_S


class PulsarServer:
    """Serves Pulsar's clients for one `RunningBroker`.

    `heard` has to be called with every change of the broker.
    """

    def __init__(self, broker: RunningBroker, options: PulsarServerOptions) -> None:
        self._broker = broker
        self._options = options
        url = options.sidecar_url
        self._sidecar = SidecarClient(url, options.sidecar_token) if url else None
        hand_over = HandOver(self._sidecar, options.own_url, self._is_here)
        self._topics = Topics(
            broker,
            options.ledger,
            hand_over,
            hash_name=options.hash_name,
            hold_s=options.hold_s,
            max_log_bytes=options.max_log_bytes,
            idle_s=options.idle_s,
        )
        self._work = Work(options.cpu_s_per_message, spend_cpu)
        self._new_name = Namer(options.incarnation)
        self._connections: set[Connection] = set()
        self._running: set[asyncio.Task[None]] = set()

    def heard(self, change: Change) -> None:
        """Follow a change of the broker."""
        self._topics.heard(change)

    async def serve(self, listening: socket.socket) -> None:
        """Serve until cancelled, then save everything and cut all clients off."""
        server = await asyncio.start_server(self._met, sock=listening, backlog=1024)
        try:
            await self._topics.save_regularly()
        finally:
            server.close()
            await self._topics.close()
            for connection in self._connections:
                connection.cut()
            await asyncio.gather(*self._running, return_exceptions=True)
            if self._sidecar is not None:
                await self._sidecar.close()

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer, f"loadmanager {self._options.version}")
        if len(self._connections) >= MAX_CONNECTIONS:
            connection.cut()
            return
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a server runs each connection in a task
        self._connections.add(connection)
        self._running.add(task)
        try:
            await connection.run(self._session)
        finally:
            self._connections.discard(connection)
            self._running.discard(task)

    def _session(self, line: Connection) -> ClientSession:
        own_url = self._options.own_url
        return ClientSession(
            line,
            Producing(line, self._broker, self._topics, self._work, self._new_name),
            Consuming(line, self._topics, own_url),
            Asking(line, self._topics, self._sidecar, own_url),
        )

    def _is_here(self, topic: TopicName) -> bool:
        return self._broker.grant(topic) is not None
