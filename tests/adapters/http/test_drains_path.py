"""Marking brokers to be emptied over HTTP."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from loadmanager.adapters.http.http_server import HttpServer
from loadmanager.admin.drains import DrainRequests, Drains, DrainState, Marked
from loadmanager.core.ids import BrokerId
from loadmanager.core.wire.records import DrainMark
from loadmanager.ports.administration import BrokerUnknown
from loadmanager.ports.lookup import Unavailable
from loadmanager.telemetry.lookups import LookupMetrics
from tests.adapters.http.conftest import FakeLookup

B1 = BrokerId("b1:8080")
BROKER = "/admin/v2/loadmanager/brokers/b1:8080"
PATH = f"{BROKER}/drain"


@dataclass
class FakeDrains(DrainRequests):
    """Knows one broker, which has seven bundles."""

    refuses: Exception | None = None
    found: DrainMark | None = None
    asked: list[tuple[str, ...]] = field(default_factory=list)

    async def mark(self, broker: BrokerId, *, by: str, reason: str) -> None:
        """Remember what was asked."""
        self._ask("mark", broker, by, reason)

    async def unmark(self, broker: BrokerId) -> None:
        """Remember what was asked."""
        self._ask("unmark", broker)

    async def status(self, broker: BrokerId) -> DrainState:
        """Tell of the seven bundles."""
        self._ask("status", broker)
        return DrainState(
            broker=broker,
            registered=True,
            draining=self.found is not None,
            marked=self.found and Marked.model_validate(self.found),
            bundles_left=7,
        )

    def _ask(self, *what: str) -> None:
        self.asked.append(what)
        if self.refuses is not None:
            raise self.refuses


@pytest.fixture
def drains() -> FakeDrains:
    return FakeDrains()


@pytest.fixture
async def url(drains: FakeDrains) -> AsyncIterator[str]:
    server = HttpServer(
        FakeLookup(),
        metrics=LookupMetrics(),
        registry=CollectorRegistry(),
        version="1",
        more_routes=Drains(drains).routes(),
    )
    port = await server.start("127.0.0.1", 0)
    yield f"http://127.0.0.1:{port}"
    await server.stop()


async def ask(method: str, url: str) -> tuple[int, str]:
    """Return status and body of an answer."""
    async with aiohttp.ClientSession() as client, client.request(method, url) as answer:
        return answer.status, await answer.text()


async def test_a_mark_is_set_with_who_and_why_and_removed(url: str, drains: FakeDrains) -> None:
    assert await ask("PUT", f"{url}{PATH}?by=ann&reason=new%20disk") == (204, "")
    assert await ask("DELETE", url + PATH) == (204, "")
    assert drains.asked == [("mark", B1, "ann", "new disk"), ("unmark", B1)]


async def test_the_status_tells_how_many_bundles_are_left(url: str, drains: FakeDrains) -> None:
    unmarked = (
        '{"broker":"b1:8080","registered":true,"draining":false,"bundlesLeft":7,"marked":null}'
    )
    assert await ask("GET", url + BROKER) == (200, unmarked)
    drains.found = DrainMark(since_ms=5, by="ann", reason="disk")
    status, text = await ask("GET", url + BROKER)
    assert status == 200
    assert text.endswith('"marked":{"sinceMs":5,"by":"ann","reason":"disk"}}')


def path_of(method: str) -> str:
    """Return what a method is for: the mark is set and taken away, the broker told of."""
    return BROKER if method == "GET" else PATH


@pytest.mark.parametrize("method", ["PUT", "GET"])
async def test_a_broker_that_nobody_knows_is_not_found(
    url: str, drains: FakeDrains, method: str
) -> None:
    drains.refuses = BrokerUnknown("b1:8080: no such broker")
    assert await ask(method, url + path_of(method)) == (404, '{"reason":"b1:8080: no such broker"}')


@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
async def test_what_cannot_be_read_or_written_is_unavailable_for_now(
    url: str, drains: FakeDrains, method: str
) -> None:
    drains.refuses = Unavailable("no connection")
    assert await ask(method, url + path_of(method)) == (503, '{"reason":"no connection"}')


@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
async def test_what_is_no_broker_is_a_failed_precondition(
    url: str, drains: FakeDrains, method: str
) -> None:
    status, text = await ask(method, url + path_of(method).replace("b1:8080", "nowhere"))
    assert status == 412
    assert "host:port" in text
    assert drains.asked == []
