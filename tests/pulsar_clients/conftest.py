"""What the tests with real Pulsar clients share."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_sidecar import FakeSidecar, fake_sidecar
from pulsar_wire import BUNDLE, open_house


@pytest.fixture
def pulsar() -> Any:
    """Return Pulsar's client package; without it these tests are skipped."""
    return pytest.importorskip("pulsar", reason="pulsar-client has no wheel for this platform")


@pytest.fixture
def quiet(pulsar: Any) -> Any:
    """Return a logger for clients that tells only what went wrong."""
    return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@pytest.fixture
async def sidecar() -> AsyncIterator[FakeSidecar]:
    """Return a sidecar whose answers the test may change."""
    async with fake_sidecar() as started:
        yield started


@pytest.fixture(params=["http", "pulsar"])
async def client(
    request: pytest.FixtureRequest, tmp_path: Path, sidecar: FakeSidecar, pulsar: Any, quiet: Any
) -> AsyncIterator[Any]:
    """Return a client of one broker: it looks up over HTTP, or over the binary protocol."""
    house = open_house("broker", tmp_path, sidecar_url=sidecar.url)
    house.renew()
    house.load(5)
    sidecar.owners = {BUNDLE: house.url}
    url = sidecar.url if request.param == "http" else house.url
    made = await asyncio.to_thread(lambda: pulsar.Client(url, logger=quiet))
    try:
        yield made
    finally:
        await asyncio.to_thread(made.shutdown)
        await house.leave()
