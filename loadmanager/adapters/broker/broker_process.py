"""The in-memory broker as a process: a socket, a record file, signals."""

import asyncio
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from loadmanager import __version__
from loadmanager.adapters.broker.changes import Change, LeaseLost, Stopped
from loadmanager.adapters.broker.running_broker import RunningBroker
from loadmanager.adapters.broker.server import ServerOptions, serve
from loadmanager.adapters.broker.serving_record import RecordFile
from loadmanager.core.hashing import HashName

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """What ``loadmanager broker`` is started with. Port 0 takes any free one."""

    host: str
    port: int
    cpu_ms_per_message: float = 1.0
    record: Path | None = None
    window_s: float = 2.0
    hash_name: HashName = "murmur3"
    max_body_bytes: int = 1024 * 1024


async def run_broker(settings: BrokerSettings, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``announce`` the address once connections are taken.

    Raises:
        OSError: the address or the record file is not to be had.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    address = (settings.host, settings.port)
    with socket.create_server(address, family=family, backlog=1024) as listening:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        broker_name = f"{host}:{listening.getsockname()[1]}"
        with _recording(settings.record) as write:
            announced = partial(announce, broker_name)
            await _serve(
                settings,
                broker_name=broker_name,
                listening=listening,
                stopping=stopping,
                announce=announced,
                write=write,
            )


async def _serve(
    settings: BrokerSettings,
    *,
    broker_name: str,
    listening: socket.socket,
    stopping: asyncio.Event,
    announce: Callable[[], None],
    write: Callable[[Change], None],
) -> None:
    def record(change: Change) -> None:
        write(change)
        _log(broker_name, change)

    incarnation = uuid.uuid4().hex
    broker = RunningBroker(
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
    )
    # The socket has listened since it was made: who connects from now on is served.
    announce()
    await serve(broker, listening, options, stopping)


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
