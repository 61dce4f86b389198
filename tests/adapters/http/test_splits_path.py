"""Splitting by hand over HTTP: paths, bodies, statuses."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from loadmanager.adapters.http.http_server import HttpServer
from loadmanager.admin.splits import Splits
from loadmanager.core.ids import Namespace
from loadmanager.core.orders import SplitOrder
from loadmanager.ports.administration import BundleUnknown, SplitRefused
from loadmanager.ports.leading import LeaderElsewhere
from loadmanager.ports.lookup import Unavailable
from loadmanager.telemetry.lookups import LookupMetrics
from tests.adapters.http.conftest import FakeLookup

JSON = {"Content-Type": "application/json"}
PATH = "/admin/v2/namespaces/public/default/0x00000000_0x40000000/split"


@dataclass
class FakeSplits:
    """A leader that cuts whatever it is asked to, or raises ``refuses``."""

    refuses: Exception | None = None
    asked: list[tuple[Namespace, str, SplitOrder]] = field(default_factory=list)

    async def split(self, namespace: Namespace, chosen: str, order: SplitOrder) -> None:
        """Remember what was asked."""
        self.asked.append((namespace, chosen, order))
        if self.refuses is not None:
            raise self.refuses


@pytest.fixture
def splits() -> FakeSplits:
    return FakeSplits()


@pytest.fixture
async def url(splits: FakeSplits) -> AsyncIterator[str]:
    server = HttpServer(
        FakeLookup(),
        metrics=LookupMetrics(),
        registry=CollectorRegistry(),
        version="1",
        more_routes=Splits(splits.split).routes(),
    )
    port = await server.start("127.0.0.1", 0)
    yield f"http://127.0.0.1:{port}"
    await server.stop()


async def put(url: str, body: bytes = b"") -> tuple[int, str, str]:
    """Return status, body and Location of a PUT."""
    async with (
        aiohttp.ClientSession() as client,
        client.put(url, data=body, headers=JSON, allow_redirects=False) as answer,
    ):
        return answer.status, await answer.text(), answer.headers.get("Location", "")


async def test_a_split_is_answered_204_when_it_is_done(url: str, splits: FakeSplits) -> None:
    assert await put(url + PATH) == (204, "", "")
    order = SplitOrder("range_equally_divide")
    assert splits.asked == [(Namespace("public/default"), "0x00000000_0x40000000", order)]


async def test_algorithm_positions_and_the_words_for_a_bundle_are_passed_on(
    url: str, splits: FakeSplits
) -> None:
    path = "/admin/v2/namespaces/public/default/HOT/split"
    query = "?splitAlgorithmName=specified_positions_divide&unload=true"
    assert (await put(url + path + query, b"[1, 4294967295]"))[0] == 204
    order = SplitOrder("specified_positions_divide", (1, 4294967295))
    assert splits.asked == [(Namespace("public/default"), "HOT", order)]


@pytest.mark.parametrize("body", [b"null", b" "])
async def test_no_positions_are_no_positions(url: str, splits: FakeSplits, body: bytes) -> None:
    assert (await put(url + PATH, body))[0] == 204
    assert splits.asked[0][2].positions == ()


async def test_a_sidecar_that_does_not_lead_sends_the_client_to_the_one_that_does(
    url: str, splits: FakeSplits
) -> None:
    splits.refuses = LeaderElsewhere("http://b2:7750")
    status, _, location = await put(url + PATH + "?splitAlgorithmName=HALVES")
    assert (status, location) == (307, f"http://b2:7750{PATH}?splitAlgorithmName=HALVES")


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (BundleUnknown("no such bundle"), 404),
        (SplitRefused("no such algorithm"), 412),
        (Unavailable("nobody owns it"), 503),
    ],
)
async def test_each_refusal_has_its_status_and_says_why(
    url: str, splits: FakeSplits, refusal: Exception, status: int
) -> None:
    splits.refuses = refusal
    assert await put(url + PATH) == (status, f'{{"reason":"{refusal}"}}', "")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"[1", "the body is not JSON"),
        (b"7", "as a whole = 7: Input should be a valid array"),
        (b'["7"]', "0 = '7': Input should be a valid integer"),
        (b"[true]", "0 = True: Input should be a valid integer"),
        (b"[4294967296]", "0 = 4294967296: Input should be less than or equal to 4294967295"),
    ],
)
async def test_a_malformed_body_is_refused_unasked(
    url: str, splits: FakeSplits, body: bytes, says: str
) -> None:
    status, text, _ = await put(url + PATH, body)
    assert status == 400
    assert says in text
    assert splits.asked == []


async def test_a_bad_namespace_is_a_failed_precondition(url: str) -> None:
    status, text, _ = await put(f"{url}/admin/v2/namespaces/a%20b/c/HOT/split")
    assert status == 412
    assert "tenant/namespace" in text


async def test_the_usual_algorithm_is_the_one_that_is_configured_now(splits: FakeSplits) -> None:
    usual = ["topic_count_equally_divide"]
    server = HttpServer(
        FakeLookup(),
        metrics=LookupMetrics(),
        registry=CollectorRegistry(),
        version="1",
        more_routes=Splits(splits.split, lambda: usual[-1]).routes(),
    )
    port = await server.start("127.0.0.1", 0)
    await put(f"http://127.0.0.1:{port}{PATH}")
    usual.append("flow_or_qps_equally_divide")
    await put(f"http://127.0.0.1:{port}{PATH}")
    await server.stop()
    assert [order.algorithm for _, _, order in splits.asked] == usual
