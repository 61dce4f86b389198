"""Brokers with a server for Pulsar's clients, sharing a ledger."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_sidecar import FakeSidecar, fake_sidecar
from pulsar_wire import House, open_house


@pytest.fixture
async def opening(tmp_path: Path) -> AsyncIterator[Callable[..., House]]:
    """Return what opens brokers; they are closed afterwards."""
    houses: list[House] = []

    def opened(**options: Any) -> House:
        houses.append(open_house(f"broker{len(houses)}", tmp_path, **options))
        return houses[-1]

    yield opened
    for house in houses:
        await house.leave()


@pytest.fixture
async def house(opening: Callable[..., House]) -> House:
    """Return a broker that serves everything in public/default, under token 5."""
    opened = opening()
    opened.renew()
    opened.load(5)
    return opened


@pytest.fixture
async def sidecar() -> AsyncIterator[FakeSidecar]:
    """Return a sidecar whose answers the test sets."""
    async with fake_sidecar() as started:
        yield started
