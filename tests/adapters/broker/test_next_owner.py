"""Who is next is told from the orders to the broker, over HTTP as in one process."""

import asyncio
import socket
import time

import pytest
from prometheus_client import CollectorRegistry

from loadmanager.adapters.broker.http_control import HttpBrokerControl
from loadmanager.agent.ownership import OwnershipWorker
from loadmanager.agent.registration import Membership
from loadmanager.core.ids import BundleId, parse_broker, parse_bundle
from loadmanager.core.orders import Orders
from loadmanager.ports.broker import BrokerRefused
from loadmanager.reference_broker.memory_broker import MemoryBroker
from loadmanager.reference_broker.server import ServerOptions, serve
from loadmanager.telemetry.metrics import Metrics
from tests.testbed.in_process import InProcessBroker

BUNDLE = parse_bundle("public/default/0x00000000_0xffffffff")
NEXT = "pulsar+ssl://next:6651"


class Forwarding(MemoryBroker):
    next_urls: tuple[str, ...] = ()

    async def unload(
        self, bundle: BundleId, *, agent_epoch: int, fencing_token: int, next_owner_url: str = ""
    ) -> None:
        self.next_urls = (*self.next_urls, next_owner_url)
        await super().unload(bundle, agent_epoch=agent_epoch, fencing_token=fencing_token)


async def test_the_next_owner_reaches_the_broker_with_the_unload() -> None:
    broker = Forwarding(broker="b", incarnation="i", clock_s=time.monotonic, record=lambda _: None)
    stopping = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve(broker, listening, ServerOptions(), stopping))
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            control = HttpBrokerControl(url, timeout_s=60)
            await control.renew_lease(agent_epoch=1, until_s=time.monotonic() + 99, incarnation="i")
            for token, next_owner_url in ((5, NEXT), (6, "")):
                await control.load(BUNDLE, agent_epoch=1, fencing_token=token)
                await control.unload(
                    BUNDLE, agent_epoch=1, fencing_token=token, next_owner_url=next_owner_url
                )
            with pytest.raises(BrokerRefused, match="nextOwnerUrl"):
                await control._command(
                    "DELETE",
                    f"{control.root}/bundles/{BUNDLE}"
                    "?agentEpoch=1&fencingToken=6&nextOwnerUrl=http://elsewhere",
                    204,
                )
            await control.close()
            stopping.set()
    assert broker.next_urls == (NEXT, "")


class Noting(InProcessBroker):
    next_urls: tuple[str, ...] = ()

    async def unload(
        self, bundle: BundleId, *, agent_epoch: int, fencing_token: int, next_owner_url: str = ""
    ) -> None:
        self.next_urls = (*self.next_urls, next_owner_url)
        await super().unload(bundle, agent_epoch=agent_epoch, fencing_token=fencing_token)


async def test_an_agent_names_the_next_owner_with_the_unload() -> None:
    broker = Noting(lambda: 100.0)
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
    assert broker.next_urls == (NEXT,)
