"""The in-memory broker as a process: sockets, a record file, signals."""

import asyncio
import os
import resource
import signal
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import structlog

from loadmanager import __version__
from loadmanager.core.hashing import DEFAULT_HASH, HashName
from loadmanager.reference_broker.changes import Change, LeaseLost, Stopped
from loadmanager.reference_broker.memory_broker import MemoryBroker
from loadmanager.reference_broker.server import ServerOptions, serve
from loadmanager.reference_broker.serving_record import RecordFile

if TYPE_CHECKING:
    from tests.testbed.pulsar_protocol.topics import PulsarServerOptions

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarSettings:
    """Settings of the service for Pulsar's clients. Port 0 chooses a free one.

    ``url`` is the address that clients get, "" for the one listened on. ``ledger`` is the folder
    of the topics' logs; None is a temporary one. ``sidecar_url`` is the sidecar to look up owners
    at, "" for none.
    """

    host: str
    port: int
    url: str = ""
    ledger: Path | None = None
    sidecar_url: str = ""
    sidecar_token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(ServerOptions):
    """Settings of ``loadmanager broker``. Port 0 chooses a free one."""

    host: str
    port: int
    record: Path | None = None
    window_s: float = 2.0
    hash_name: HashName = DEFAULT_HASH
    pulsar: PulsarSettings | None = None


async def run_broker(settings: BrokerSettings, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``announce`` the URLs once connections are accepted.

    Raises:
        OSError: an address, the record file or the ledger cannot be used.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    with ExitStack() as held:
        listening, address = _listening(settings.host, settings.port, held)
        listeners: list[Callable[[Change], None]] = [partial(_log, address)]
        if settings.record is not None:
            listeners.insert(0, held.enter_context(closing(RecordFile(settings.record))).write)
        urls = [f"http://{address}"]
        pulsar = None
        if settings.pulsar is not None:
            pulsar = _pulsar_service(settings, settings.pulsar, held)
            urls.append(pulsar[0].own_url)

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
        async with asyncio.TaskGroup() as tasks:
            serving = None
            if pulsar is not None:
                from tests.testbed.pulsar_protocol.server import PulsarServer  # noqa: PLC0415

                pulsar_server = PulsarServer(broker, pulsar[0])
                listeners.append(pulsar_server.on_change)
                serving = tasks.create_task(pulsar_server.serve(pulsar[1]))
            # The sockets already listen; connections are served from now on.
            for url in urls:
                announce(url)
            await serve(broker, listening, options, stopping)
            if serving is not None:
                serving.cancel()


def _pulsar_service(
    settings: BrokerSettings, pulsar: PulsarSettings, held: ExitStack
) -> "tuple[PulsarServerOptions, socket.socket]":
    """Return options and socket of the server for Pulsar's clients, which alone needs protobuf."""
    from tests.testbed.pulsar_protocol.topics import PulsarServerOptions  # noqa: PLC0415

    _allow_many_files()
    listening, address = _listening(pulsar.host, pulsar.port, held)
    ledger = pulsar.ledger or Path(held.enter_context(TemporaryDirectory()))
    ledger.mkdir(parents=True, exist_ok=True)
    options = PulsarServerOptions(
        own_url=pulsar.url or f"pulsar://{address}",
        ledger=ledger,
        version=__version__,
        hash_name=settings.hash_name,
        sidecar_url=pulsar.sidecar_url,
        sidecar_token=pulsar.sidecar_token,
        cpu_s_per_message=settings.cpu_s_per_message,
    )
    return options, listening


def _allow_many_files() -> None:
    """Raise the limit of open files to the system's: each topic and each client needs one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


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
