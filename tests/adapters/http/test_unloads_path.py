"""Unloading by hand over HTTP: paths, destinations, statuses."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from loadmanager.adapters.http.http_server import HttpServer
from loadmanager.admin.unloads import UnloadedBundle, Unloads
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.ports.administration import BundleUnknown, UnloadRefused
from loadmanager.ports.leading import LeaderElsewhere
from loadmanager.ports.lookup import NamespaceUnknown, Unavailable
from loadmanager.telemetry.lookups import LookupMetrics
from tests.adapters.http.conftest import FakeLookup

RANGE = "0x00000000_0x40000000"
B1, B2 = BrokerId("b1:8080"), BrokerId("b2:8080")
WHOLE = "/admin/v2/namespaces/public/default/unload"
PATH = f"/admin/v2/namespaces/public/default/{RANGE}/unload"
OURS = f"/admin/v2/loadmanager/namespaces/public/default/{RANGE}/unload"
PUBLIC = Namespace("public/default")


@dataclass
class FakeUnloads:
    """A leader that unloads whatever it is asked to, or raises ``refuses``."""

    refuses: Exception | None = None
    asked: list[tuple[Namespace, str | None, BrokerId | None]] = field(default_factory=list)

    async def unload(
        self, namespace: Namespace, range_text: str | None, destination: BrokerId | None
    ) -> Sequence[UnloadedBundle]:
        """Remember what was asked."""
        self.asked.append((namespace, range_text, destination))
        if self.refuses is not None:
            raise self.refuses
        bundle = BundleId(f"{namespace}/{range_text}")
        return [UnloadedBundle(bundle=bundle, source=B1, target=destination or B2, took_s=0.01234)]


@pytest.fixture
def unloads() -> FakeUnloads:
    return FakeUnloads()


@pytest.fixture
async def url(unloads: FakeUnloads) -> AsyncIterator[str]:
    server = HttpServer(
        FakeLookup(),
        metrics=LookupMetrics(),
        registry=CollectorRegistry(),
        version="1",
        more_routes=Unloads(unloads.unload).routes(),
    )
    port = await server.start("127.0.0.1", 0)
    yield f"http://127.0.0.1:{port}"
    await server.stop()


async def put(url: str) -> tuple[int, str, str]:
    """Return status, body and Location of a PUT."""
    async with (
        aiohttp.ClientSession() as client,
        client.put(url, allow_redirects=False) as answer,
    ):
        return answer.status, await answer.text(), answer.headers.get("Location", "")


async def test_an_unload_is_answered_204_when_it_is_done(url: str, unloads: FakeUnloads) -> None:
    assert await put(url + PATH) == (204, "", "")
    assert unloads.asked == [(PUBLIC, RANGE, None)]


async def test_our_own_path_answers_with_where_the_bundle_went(url: str) -> None:
    status, body, _ = await put(f"{url}{OURS}?destinationBroker=b3:8080")
    assert (status, json.loads(body)) == (
        200,
        {
            "bundle": f"{PUBLIC}/{RANGE}",
            "source": "b1:8080",
            "target": "b3:8080",
            "tookS": 0.0123,
        },
    )


async def test_a_whole_namespace_is_unloaded_by_the_shorter_path(
    url: str, unloads: FakeUnloads
) -> None:
    assert await put(url + WHOLE) == (204, "", "")
    assert unloads.asked == [(PUBLIC, None, None)]


@pytest.mark.parametrize(
    "text", ["b2:8080", "http://b2:8080", "https://b2:8080/", "HTTP://b2:8080", "b2%3A8080"]
)
async def test_a_destination_may_be_written_as_a_url(
    url: str, unloads: FakeUnloads, text: str
) -> None:
    assert (await put(f"{url}{PATH}?authoritative=false&destinationBroker={text}"))[0] == 204
    assert unloads.asked == [(PUBLIC, RANGE, BrokerId("b2:8080"))]


async def test_a_sidecar_that_does_not_lead_sends_the_client_to_the_one_that_does(
    url: str, unloads: FakeUnloads
) -> None:
    unloads.refuses = LeaderElsewhere("http://b2:7750")
    status, _, location = await put(url + PATH + "?destinationBroker=b3:8080")
    assert (status, location) == (307, f"http://b2:7750{PATH}?destinationBroker=b3:8080")


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (NamespaceUnknown("no such namespace"), 404),
        (BundleUnknown("no such bundle"), 404),
        (UnloadRefused("inactive destination"), 409),
        (Unavailable("no other broker can take it"), 503),
    ],
)
async def test_each_refusal_has_its_status_and_says_why(
    url: str, unloads: FakeUnloads, refusal: Exception, status: int
) -> None:
    unloads.refuses = refusal
    assert await put(url + PATH) == (status, f'{{"reason":"{refusal}"}}', "")


@pytest.mark.parametrize(
    "path",
    [
        f"/admin/v2/namespaces/a%20b/c/{RANGE}/unload",
        f"{PATH}?destinationBroker=nowhere",
        f"{PATH}?destinationBroker=http://",
    ],
)
async def test_bad_names_are_failed_preconditions(
    url: str, unloads: FakeUnloads, path: str
) -> None:
    assert (await put(url + path))[0] == 412
    assert unloads.asked == []
