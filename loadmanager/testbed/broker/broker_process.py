"""The in-memory broker as a process: a socket, a record file, signals."""

import asyncio
import os
import resource
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import structlog

from loadmanager import __version__
from loadmanager.core.hashing import DEFAULT_HASH, HashName
from loadmanager.testbed.broker.changes import Change, LeaseLost, Stopped
from loadmanager.testbed.broker.memory_broker import MemoryBroker
from loadmanager.testbed.broker.server import ServerOptions, serve
from loadmanager.testbed.broker.serving_record import RecordFile

if TYPE_CHECKING:
    from loadmanager.testbed.pulsar_protocol.server import PulsarServer

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
class BrokerSettings:
    """Settings of ``loadmanager broker``. Port 0 chooses a free one."""

    host: str
    port: int
    cpu_ms_per_message: float = 1.0
    record: Path | None = None
    window_s: float = 2.0
    hash_name: HashName = DEFAULT_HASH
    max_body_bytes: int = 1024 * 1024
    control_secret: str = ""
    pulsar: PulsarSettings | None = None


async def run_broker(settings: BrokerSettings, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``announce`` the URLs once connections are taken.

    Raises:
        OSError: an address, the record file or the ledger cannot be used.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    with ExitStack() as held:
        listening = held.enter_context(_listening(settings.host, settings.port))
        broker_name = _address(settings.host, listening)
        write = held.enter_context(_recording(settings.record))
        urls = [f"http://{broker_name}"]
        place = None
        if settings.pulsar is not None:
            place = _place(settings.pulsar, held)
            urls.append(place.url)

        def announced() -> None:
            for url in urls:
                announce(url)

        await _serve(
            settings,
            broker_name=broker_name,
            listening=listening,
            stopping=stopping,
            announce=announced,
            write=write,
            place=place,
        )


async def _serve(
    settings: BrokerSettings,
    *,
    broker_name: str,
    listening: socket.socket,
    stopping: asyncio.Event,
    announce: Callable[[], None],
    write: Callable[[Change], None],
    place: "_Place | None",
) -> None:
    hearers: list[Callable[[Change], None]] = [write, partial(_log, broker_name)]

    def record(change: Change) -> None:
        for hear in hearers:
            hear(change)

    incarnation = uuid.uuid4().hex
    broker = MemoryBroker(
        broker=broker_name,
        incarnation=incarnation,
        clock_s=time.monotonic,
        record=record,
        hash_name=settings.hash_name,
        window_s=settings.window_s,
    )
    options = ServerOptions(
        incarnation=incarnation,
        version=__version__,
        process_id=os.getpid(),
        cpu_s_per_message=settings.cpu_ms_per_message / 1000,
        max_body_bytes=settings.max_body_bytes,
        control_secret=settings.control_secret,
    )
    async with asyncio.TaskGroup() as tasks:
        doing = None
        if place is not None:
            pulsar_server = _pulsar_server(settings, place, broker, incarnation)
            hearers.append(pulsar_server.heard)
            doing = tasks.create_task(pulsar_server.serve(place.listening))
        # The sockets already listen; connections are served from now on.
        announce()
        await serve(broker, listening, options, stopping)
        if doing is not None:
            doing.cancel()


@dataclass(frozen=True, slots=True)
class _Place:
    """The service for Pulsar's clients: its socket, the advertised URL, and the topics' logs."""

    listening: socket.socket
    url: str
    ledger: Path


def _place(settings: PulsarSettings, held: ExitStack) -> _Place:
    _allow_many_files()
    listening = held.enter_context(_listening(settings.host, settings.port))
    url = settings.url or f"pulsar://{_address(settings.host, listening)}"
    if settings.ledger is not None:
        settings.ledger.mkdir(parents=True, exist_ok=True)
        return _Place(listening, url, settings.ledger)
    return _Place(listening, url, Path(held.enter_context(TemporaryDirectory())))


def _pulsar_server(
    settings: BrokerSettings, place: _Place, broker: MemoryBroker, incarnation: str
) -> "PulsarServer":
    """Return the server for Pulsar's clients; only this function needs protobuf."""
    from loadmanager.testbed.pulsar_protocol.server import PulsarServer  # noqa: PLC0415
    from loadmanager.testbed.pulsar_protocol.topics import PulsarServerOptions  # noqa: PLC0415

    assert settings.pulsar is not None  # noqa: S101 - there is a place for it
    options = PulsarServerOptions(
        own_url=place.url,
        ledger=place.ledger,
        incarnation=incarnation,
        version=__version__,
        hash_name=settings.hash_name,
        sidecar_url=settings.pulsar.sidecar_url,
        sidecar_token=settings.pulsar.sidecar_token,
        cpu_s_per_message=settings.cpu_ms_per_message / 1000,
    )
    return PulsarServer(broker, options)


def _allow_many_files() -> None:
    """Raise the limit of open files to the system's: each topic and each client needs one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)


def _address(host: str, listening: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{listening.getsockname()[1]}"


def _log(broker_name: str, change: Change) -> None:
    if isinstance(change, LeaseLost):
        log.warning(
            "broker.lease.lost",
            broker=broker_name,
            agent_epoch=change.agent_epoch,
            noticed_after_s=round(change.at_s - change.until_s, 3),
        )
    elif isinstance(change, Stopped):
        log.info("broker.process.stopped", broker=broker_name)


@contextmanager
def _recording(path: Path | None) -> Iterator[Callable[[Change], None]]:
    if path is None:
        yield lambda _change: None
        return
    with closing(RecordFile(path)) as record:
        yield record.write
