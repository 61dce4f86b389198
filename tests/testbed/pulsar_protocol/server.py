"""The in-memory broker's server for Pulsar's clients."""

import asyncio
import socket
from typing import Final

from loadmanager.reference_broker.changes import Change
from loadmanager.reference_broker.memory_broker import MemoryBroker
from tests.testbed.pulsar_protocol.connection import Connection
from tests.testbed.pulsar_protocol.topics import PulsarServerOptions, Topics

MAX_CONNECTIONS: Final = 5_000
"""Clients at a time; more are cut off."""


class PulsarServer:
    """Serves Pulsar's clients for one `MemoryBroker`.

    `on_change` has to be called with every change of the broker.
    """

    def __init__(self, broker: MemoryBroker, options: PulsarServerOptions) -> None:
        self._server_version = f"loadmanager {options.version}"
        self._topics = Topics(broker, options)
        self._running: dict[Connection, asyncio.Task[None]] = {}

    def on_change(self, change: Change) -> None:
        """Follow a change of the broker."""
        self._topics.on_change(change)

    async def serve(self, listening: socket.socket) -> None:
        """Serve until cancelled, then save everything and cut all clients off."""
        server = await asyncio.start_server(self._connected, sock=listening, backlog=1024)
        try:
            await self._topics.save_regularly()
        finally:
            server.close()
            await self._topics.close()
            for connection in self._running:
                connection.cut()
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            if self._topics.sidecar is not None:
                await self._topics.sidecar.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer, self._topics, self._server_version)
        if len(self._running) >= MAX_CONNECTIONS:
            connection.cut()
            return
        task = asyncio.current_task()
        assert task is not None
        self._running[connection] = task
        try:
            await connection.run()
        finally:
            del self._running[connection]
