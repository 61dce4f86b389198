"""The in-memory broker as a process that serves Pulsar's own clients too.

``python -m tests.testbed.pulsar_broker --listen HOST:PORT --pulsar-listen HOST:PORT ...``
"""

import argparse
import asyncio
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from loadmanager.core.hashing import DEFAULT_HASH
from loadmanager.reference_broker.changes import Change, RecordFile
from loadmanager.reference_broker.server import ServerOptions, serve
from tests.testbed.pulsar_protocol.server import ForwardingBroker, PulsarServer


def _socket(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_server((host, int(port)), backlog=1024)


async def _run(asked: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    cpu_s_per_message = asked.cpu_ms_per_message / 1000
    with (
        closing(RecordFile(asked.record)) as record,
        _socket(asked.listen) as http,
        _socket(asked.pulsar_listen) as binary,
    ):
        listeners: list[Callable[[Change], None]] = [record.write]

        def on_change(change: Change) -> None:
            for listen in listeners:
                listen(change)

        broker = ForwardingBroker(
            broker=asked.listen,
            incarnation=uuid.uuid4().hex,
            clock_s=time.monotonic,
            record=on_change,
            hash_name=asked.hash,
        )
        server = PulsarServer(broker, asked.ledger, cpu_s_per_message)
        listeners.append(server.on_change)
        options = ServerOptions(process_id=os.getpid(), cpu_s_per_message=cpu_s_per_message)
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve(binary))
            await serve(broker, http, options, stopping)
            serving.cancel()


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.testbed.pulsar_broker")
    parser.add_argument("--listen", required=True)
    parser.add_argument("--pulsar-listen", required=True)
    parser.add_argument("--record", required=True, type=Path)
    parser.add_argument("--ledger", required=True, type=Path)
    parser.add_argument("--cpu-ms-per-message", type=float, default=0.05)
    parser.add_argument("--hash", default=DEFAULT_HASH)
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(_run(_asked()))
