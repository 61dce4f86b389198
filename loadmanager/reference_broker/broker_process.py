"""The in-memory broker as a process: sockets, a record file, signals."""

import asyncio
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog

from loadmanager import __version__
from loadmanager.core.hashing import DEFAULT_HASH, HashName
from loadmanager.reference_broker.changes import Change, LeaseLost, Stopped
from loadmanager.reference_broker.memory_broker import MemoryBroker
from loadmanager.reference_broker.server import ServerOptions, serve
from loadmanager.reference_broker.serving_record import RecordFile

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(ServerOptions):
    """Settings of ``loadmanager broker``. Port 0 chooses a free one."""

    host: str
    port: int
    record: Path | None = None
    window_s: float = 2.0
    hash_name: HashName = DEFAULT_HASH


async def run_broker(settings: BrokerSettings, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``announce`` the URL once connections are accepted.

    Raises:
        OSError: the address or the record file cannot be used.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    with ExitStack() as held:
        listening, address = _listening(settings.host, settings.port, held)
        listeners: list[Callable[[Change], None]] = [partial(_log, address)]
        if settings.record is not None:
            listeners.insert(0, held.enter_context(closing(RecordFile(settings.record))).write)

        def record(change: Change) -> None:
            for listen in listeners:
                listen(change)

        broker = MemoryBroker(
            broker=address,
            incarnation=uuid.uuid4().hex,
            clock_s=time.monotonic,
            record=record,
            hash_name=settings.hash_name,
            window_s=settings.window_s,
        )
        options = replace(settings, version=__version__, process_id=os.getpid())
        # The socket already listens; connections are served from now on.
        announce(f"http://{address}")
        await serve(broker, listening, options, stopping)


def _listening(host: str, port: int, held: ExitStack) -> tuple[socket.socket, str]:
    """Return a listening socket, closed with ``held``, and its ``host:port``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=1024)
    held.enter_context(listening)
    shown = f"[{host}]" if ":" in host else host
    return listening, f"{shown}:{listening.getsockname()[1]}"


def _log(address: str, change: Change) -> None:
    if isinstance(change, LeaseLost):
        log.warning(
            "broker.lease.lost",
            broker=address,
            agent_epoch=change.agent_epoch,
            noticed_after_s=round(change.at_s - change.until_s, 3),
        )
    elif isinstance(change, Stopped):
        log.info("broker.process.stopped", broker=address)
