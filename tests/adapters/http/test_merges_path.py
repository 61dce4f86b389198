"""Merging over HTTP: paths, the neighbour, statuses; and the command for it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from loadmanager.adapters.http.http_server import HttpServer
from loadmanager.admin.merges import Merges
from loadmanager.cli import main
from loadmanager.core.ids import BundleId, Namespace
from loadmanager.ports.administration import BundleUnknown, Conflict, MergeRefused
from loadmanager.ports.leading import LeaderElsewhere
from loadmanager.ports.lookup import NamespaceUnknown, Unavailable
from loadmanager.telemetry.lookups import LookupMetrics
from tests.adapters.http.conftest import FakeLookup

LOWER, UPPER = "0x00000000_0x40000000", "0x40000000_0x80000000"
PATH = f"/admin/v2/loadmanager/namespaces/public/default/{LOWER}/merge"
WHOLE = BundleId("public/default/0x00000000_0x80000000")


@dataclass
class FakeMerges:
    """A leader that merges whatever it is asked to, or raises ``refuses``."""

    refuses: Exception | None = None
    asked: list[tuple[Namespace, str, str | None]] = field(default_factory=list)

    async def merge(self, namespace: Namespace, range_text: str, other: str | None) -> BundleId:
        """Remember what was asked."""
        self.asked.append((namespace, range_text, other))
        if self.refuses is not None:
            raise self.refuses
        return WHOLE


@pytest.fixture
def merges() -> FakeMerges:
    return FakeMerges()


@pytest.fixture
async def url(merges: FakeMerges) -> AsyncIterator[str]:
    server = HttpServer(
        FakeLookup(),
        metrics=LookupMetrics(),
        registry=CollectorRegistry(),
        version="1",
        more_routes=Merges(merges.merge).routes(),
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


@pytest.mark.parametrize(("query", "other"), [("", None), (f"?with={UPPER}", UPPER)])
async def test_the_whole_is_told_when_it_is_done(
    url: str, merges: FakeMerges, query: str, other: str | None
) -> None:
    assert await put(url + PATH + query) == (200, '{"bundle":"0x00000000_0x80000000"}', "")
    assert merges.asked == [(Namespace("public/default"), LOWER, other)]


async def test_a_sidecar_that_does_not_lead_sends_the_client_to_the_one_that_does(
    url: str, merges: FakeMerges
) -> None:
    merges.refuses = LeaderElsewhere("http://b2:7750")
    status, _, location = await put(f"{url}{PATH}?with={UPPER}")
    assert (status, location) == (307, f"http://b2:7750{PATH}?with={UPPER}")


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (NamespaceUnknown("no such namespace"), 404),
        (BundleUnknown("no such bundle"), 404),
        (Conflict("on its way"), 409),
        (MergeRefused("not adjacent"), 412),
        (Unavailable("not in time"), 503),
    ],
)
async def test_each_refusal_has_its_status_and_says_why(
    url: str, merges: FakeMerges, refusal: Exception, status: int
) -> None:
    merges.refuses = refusal
    assert await put(url + PATH) == (status, f'{{"reason":"{refusal}"}}', "")


async def test_the_command_names_both_and_tells_the_whole(url: str, merges: FakeMerges) -> None:
    arguments = ["merge", f"public/default/{LOWER}", f"public/default/{UPPER}", "--url", url]
    said = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert said.exit_code == 0, said.output
    assert said.output.strip().endswith(f"are {WHOLE} now")
    assert merges.asked == [(Namespace("public/default"), LOWER, UPPER)]
    merges.refuses = MergeRefused("they are not adjacent")
    said = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert said.exit_code == 2
    assert "they are not adjacent" in said.output
    merges.refuses = Conflict("it is on its way")
    said = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert said.exit_code == 1


@pytest.mark.parametrize(
    ("lower", "upper", "says"),
    [
        ("public/default", f"public/default/{UPPER}", "expected tenant/namespace/0x"),
        (f"public/default/{LOWER}", f"public/other/{UPPER}", "of the same namespace"),
    ],
)
def test_what_cannot_be_two_neighbours_is_refused_unasked(
    lower: str, upper: str, says: str
) -> None:
    said = CliRunner().invoke(main, ["merge", lower, upper, "--url", "http://127.0.0.1:9"])
    assert said.exit_code == 2
    assert says in said.output
