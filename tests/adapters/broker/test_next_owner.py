"""Who is next is told from the orders to the broker, over HTTP as in one process."""

import asyncio
import time
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from loadmanager.adapters.broker.http_control import HttpBrokerControl
from loadmanager.agent.ownership import OwnershipWorker
from loadmanager.agent.registration import Membership
from loadmanager.core.ids import BundleId, parse_broker, parse_bundle
from loadmanager.core.orders import Orders
from loadmanager.reference_broker.memory_broker import MemoryBroker
from loadmanager.telemetry.metrics import Metrics
from tests.testbed.in_process import InProcessBroker

BUNDLE = parse_bundle("public/default/0x00000000_0xffffffff")
NEXT = "pulsar+ssl://next:6651"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what the broker is told with each unload."""
    found: list[str] = []
    unload = MemoryBroker.unload

    async def noted(
        self: MemoryBroker, bundle: BundleId, *, next_owner_url: str, **grant: Any
    ) -> None:
        found.append(next_owner_url)
        await unload(self, bundle, **grant)

    monkeypatch.setattr(MemoryBroker, "unload", noted)
    return found


async def test_the_next_owner_reaches_the_broker_with_the_unload(
    serve_broker: Any, told: list[str]
) -> None:
    async with serve_broker(time.monotonic) as served:
        control = HttpBrokerControl(served.url, timeout_s=60)
        until_s = time.monotonic() + 99
        await control.renew_lease(agent_epoch=1, until_s=until_s, incarnation="first")
        for token, url in ((5, NEXT), (6, "")):
            await control.load(BUNDLE, agent_epoch=1, fencing_token=token)
            await control.unload(BUNDLE, agent_epoch=1, fencing_token=token, next_owner_url=url)
        query = "agentEpoch=1&fencingToken=6&nextOwnerUrl=http://elsewhere"
        async with aiohttp.ClientSession() as http:
            refused = await http.delete(f"{control.root}/bundles/{BUNDLE}?{query}")
            assert (refused.status, "nextOwnerUrl" in await refused.text()) == (400, True)
        await control.close()
    assert told == [NEXT, ""]


async def test_an_agent_names_the_next_owner_with_the_unload(told: list[str]) -> None:
    broker = InProcessBroker(lambda: 100.0)
    await broker.renew_lease(agent_epoch=1, until_s=200.0, incarnation=broker.incarnation)
    async with asyncio.TaskGroup() as tasks:
        ownerships = OwnershipWorker(
            broker,
            Metrics(CollectorRegistry()),
            claimed_elsewhere=lambda _bundle: False,
            tasks=tasks,
            next_owner_url={BUNDLE: NEXT}.__getitem__,
        )
        ownerships.joined(Membership(parse_broker("broker:8080"), session_id=1, agent_epoch=1))
        ownerships.obey(Orders(1, frozenset({BUNDLE})))
        ownerships.locks_taken({BUNDLE: 5})
        ownerships.obey(Orders(2))
    assert told == [NEXT]
