"""What several tests of commands are given."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from simulated_jobs import written

from loadmanager.adapters.http.http_server import HttpServer
from loadmanager.adapters.http.operations import Resource
from loadmanager.ports.lookup import LookupService
from loadmanager.telemetry.metrics import LookupMetrics


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """Return the file of a small scenario in which one of two brokers has everything."""
    return written(tmp_path / "two.toml")


class NoLookup(LookupService):
    """An application that nobody looks anything up in."""


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    servers: list[HttpServer] = []

    def begin(*resources: Resource, lookups: LookupService | None = None) -> str:
        server = HttpServer(
            lookups or NoLookup(),  # type: ignore[abstract]  # none of its methods is ever called
            metrics=LookupMetrics(),
            registry=CollectorRegistry(),
            version="1",
            more_routes=[route for one in resources for route in one.routes()],
        )
        servers.append(server)
        started = asyncio.run_coroutine_threadsafe(server.start("127.0.0.1", 0), loop)
        return f"http://127.0.0.1:{started.result(10)}"

    try:
        yield begin
    finally:
        for server in servers:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
