"""A broker in either form, and a clock that tests move."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from loadmanager.reference_broker.changes import Change
from loadmanager.reference_broker.memory_broker import MemoryBroker
from loadmanager.reference_broker.server import ServerOptions, serve


@dataclass(slots=True)
class HandClock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(slots=True)
class ServedBroker:
    url: str
    running: MemoryBroker
    stopping: asyncio.Event
    changes: list[Change] = field(default_factory=list)


ServeBroker = Callable[..., AbstractAsyncContextManager[ServedBroker]]


@asynccontextmanager
async def _served_broker(
    clock_s: Callable[[], float], port: int = 0, incarnation: str = "first", **options: object
) -> AsyncIterator[ServedBroker]:
    listening = socket.create_server(("127.0.0.1", port))
    changes: list[Change] = []
    name = f"127.0.0.1:{listening.getsockname()[1]}"
    running = MemoryBroker(
        broker=name, incarnation=incarnation, clock_s=clock_s, record=changes.append
    )
    served = ServedBroker(f"http://{name}", running, asyncio.Event(), changes)
    settings = ServerOptions(**options)  # type: ignore[arg-type] # tests name the options
    with listening:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve(running, listening, settings, served.stopping))
            yield served
            served.stopping.set()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def serve_broker() -> ServeBroker:
    """Return a context manager that serves a broker; arguments as `ServerOptions`."""
    return _served_broker
