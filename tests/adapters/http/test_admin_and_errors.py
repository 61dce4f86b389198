import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from loadmanager.adapters.http.protocol import Failures
from loadmanager.adapters.http.routes import Route, Target, text_reply
from loadmanager.config.sections import HttpSettings
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import Namespace, TopicName
from tests.adapters.http.conftest import PUBLIC, FakeLookup, RunningServer, StartServer, until
from tests.adapters.http.test_leader_line import leader_at

NEW = "/admin/v2/namespaces/acme/prod"
JSON = {"Content-Type": "application/json"}


async def test_partitions_are_told_for_both_domains(server: RunningServer) -> None:
    server.lookup.partitioned[TopicName("persistent", PUBLIC, "p/q")] = 3
    path = "/admin/v2/{}/public/default/p%2Fq/partitions?checkAllowAutoCreation=true"
    assert (await server.ask(path.format("persistent"))).json() == {"partitions": 3}
    assert (await server.ask(path.format("non-persistent"))).json() == {"partitions": 0}
    assert (await server.ask(path.format("other"))).status == 404


FIVE = Boundaries.even(Namespace("acme/prod"), 5).bounds
IN_ANY_ORDER = ["0xffffffff", "0x00000000", "0x40000000", "0x00000000"]


@pytest.mark.parametrize(
    ("body", "bounds"),
    [
        (None, FIVE),
        ({}, FIVE),
        # So a Go client asks for the default.
        ({"bundles": {"numBundles": 0, "boundaries": None}}, FIVE),
        ({"bundles": {"numBundles": 2}}, (0, 0x80000000, 0xFFFFFFFF)),
        ({"bundles": {"numBundles": 9, "boundaries": IN_ANY_ORDER}}, (0, 0x40000000, 0xFFFFFFFF)),
        ({"replication_clusters": ["x"], "bundles": {"numBundles": 1}}, (0, 0xFFFFFFFF)),
    ],
)
async def test_a_namespace_is_created_with_the_bundles_asked_for(
    start_server: StartServer, body: Any, bounds: tuple[int, ...]
) -> None:
    server = await start_server(default_bundles=5)
    got = (
        await server.ask(NEW, "PUT", json=body)
        if body is not None
        else await server.ask(NEW, "PUT")
    )
    assert (got.status, got.text) == (204, "")
    assert server.lookup.namespaces[Namespace("acme/prod")].bounds == bounds
    told = await server.ask(NEW + "/bundles")
    assert told.json() == {
        "boundaries": [f"0x{bound:08x}" for bound in bounds],
        "numBundles": len(bounds) - 1,
    }
    assert (await server.ask(NEW, "PUT")).status == 409


MANY = b'{"bundles":{"boundaries":[%s]}}' % b",".join([b'"0x0"'] * 32_770)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        *((body, 400, "the body is not JSON") for body in (b"{", b"\xff", b"[" * 100_000)),
        (b"[1]", 400, "the body: as a whole = [1]: Input should be an object"),
        (b'{"bundles":3}', 400, "bundles = 3: Input should be an object"),
        (b'{"bundles":{"numBundles":true}}', 400, "True: Input should be a valid integer"),
        (b'{"bundles":{"numBundles":-1}}', 412, "numBundles = -1; expected 0 to 32768"),
        (b'{"bundles":{"numBundles":32769}}', 412, "numBundles = 32769; expected 0 to 32768"),
        (b'{"bundles":{"boundaries":"0x0"}}', 400, "= '0x0': Input should be a valid array"),
        (b'{"bundles":{"boundaries":[1]}}', 400, "boundaries.0 = 1: Input should be a valid str"),
        (b'{"bundles":{"boundaries":["1"]}}', 412, "boundaries holds '1'; expected texts"),
        (b'{"bundles":{"numBundles":NaN}}', 400, "not JSON compliant"),
        (b'{"x":"\\ud800"}', 400, "the body: as a whole"),
        (MANY, 412, "at most 32769"),
        (b'{"bundles":{"boundaries":["0x00000000"]}}', 412, "growing bounds from 0x00000000"),
    ],
)
async def test_a_wrong_policies_object_is_refused_by_field(
    server: RunningServer, body: bytes, status: int, said: str
) -> None:
    got = await server.ask(NEW, "PUT", data=body, headers=JSON)
    assert got.status == status
    assert said in got.json()["reason"]
    assert Namespace("acme/prod") not in server.lookup.namespaces


async def test_a_body_that_is_null_is_none(server: RunningServer) -> None:
    assert (await server.ask(NEW, "PUT", data=b"null", headers=JSON)).status == 204


async def test_a_wrong_namespace_name_is_a_failed_precondition(server: RunningServer) -> None:
    assert (await server.ask("/admin/v2/namespaces/acme/pr%20od", "PUT")).status == 412
    assert (await server.ask("/admin/v2/namespaces/acme/none/bundles")).status == 404


async def test_the_leader_is_told_once_there_is_one(server: RunningServer) -> None:
    path = "/admin/v2/brokers/leaderBroker"
    assert (await server.ask(path)).json() == {"reason": "Couldn't find leader broker"}
    server.lookup.leader = leader_at("http://b1:9090")
    want = {"brokerId": "b1:8080", "serviceUrl": "http://b1:8080"}
    assert (await server.ask(path)).json() == want


async def test_health_and_readiness_follow_the_picture(server: RunningServer) -> None:
    paths = ("/admin/v2/brokers/health", "/admin/v2/brokers/ready", "/healthz")
    assert [(await server.ask(path)).text for path in paths] == ["ok", "ok", "ok"]
    assert (await server.ask("/readyz")).json() == {"ready": True, "reasons": []}
    server.lookup.reasons = ("no session", "no leader")
    assert [(await server.ask(path)).status for path in paths] == [503, 503, 200]
    got = await server.ask("/readyz")
    assert (got.status, got.json()) == (
        503,
        {"ready": False, "reasons": ["no session", "no leader"], "reason": "no session; no leader"},
    )


async def test_what_is_troublesome_alone_is_told_and_leaves_it_ready(server: RunningServer) -> None:
    server.lookup.troubles = ("history: No space left on device",)
    got = await server.ask("/readyz")
    told = {"ready": True, "reasons": [], "troubles": ["history: No space left on device"]}
    assert (got.status, got.json()) == (200, told)
    assert (await server.ask("/healthz")).status == 200


async def test_metrics_come_in_the_format_the_scraper_accepts(server: RunningServer) -> None:
    plain = await server.ask("/metrics")
    assert plain.headers["Content-Type"].startswith("text/plain")
    assert 'loadmanager_lookups_total{result="answered"} 0.0' in plain.text
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    opened = await server.ask("/metrics", headers=accept)
    assert opened.headers["Content-Type"].startswith("application/openmetrics-text")
    assert opened.text.endswith("# EOF\n")


async def test_paths_and_methods_that_are_none_are_told(server: RunningServer) -> None:
    got = await server.ask("/healthz", "POST")
    assert (got.status, got.headers["Allow"]) == (405, "GET")
    assert got.json() == {"reason": "POST is not for this path"}
    got = await server.ask("/healthz", "HEAD")
    assert (got.status, got.text) == (200, "")
    got = await server.ask("/nothing/here")
    assert (got.status, got.json()) == (
        404,
        {"reason": "there is nothing at this path; /openapi.json lists all paths"},
    )
    assert (await server.ask("/admin/v2/brokers/version")).text == "1.2.3"


async def test_failed_requests_are_counted_and_one_a_minute_traced(server: RunningServer) -> None:
    server.lookup.breaks = True
    with capture_logs() as logs:
        for _ in range(3):
            got = await server.ask("/lookup/v2/topic/persistent/public/default/x")
            assert got.status == 500
    events = [entry for entry in logs if entry["event"] == "http.request.failed"]
    assert got.json() == {
        "reason": f"an unexpected error; it is in the log under {events[-1]['reason_id']}"
    }
    assert "secret" not in got.text
    assert isinstance(events[0]["exc_info"], ZeroDivisionError)
    assert [entry["exc_info"] is not None for entry in events] == [True, False, False]
    assert all("ZeroDivisionError" in entry["error"] for entry in events)
    times_s, counted = iter((0.0, 59.9, 60.0)), []
    failures = Failures(lambda: next(times_s), lambda: counted.append(1))
    error = ValueError("x")
    assert [failures.trace_of(error) for _ in range(3)] == [error, None, error]
    assert len(counted) == 3


async def test_others_can_add_routes(start_server: StartServer) -> None:
    async def greet(_request: web.BaseRequest, target: Target) -> web.StreamResponse:
        return text_reply(f"hello {target.captured[0]} {target.query('x')}")

    server = await start_server(more_routes=(Route("GET", "/greet/{}", greet),))
    assert (await server.ask("/greet/a%2Fb?x=1&x=2")).text == "hello a/b 1"


async def test_closing_lets_requests_under_way_finish(start_server: StartServer) -> None:
    gate = asyncio.Event()
    server = await start_server(FakeLookup(gate=gate))
    under_way = asyncio.create_task(server.ask("/lookup/v2/topic/persistent/public/default/x"))
    await until(lambda: server.lookup.waiting == 1)
    closing = asyncio.create_task(server.server.stop())
    await asyncio.sleep(0)
    gate.set()
    assert (await under_way).status == 200
    await closing
    with pytest.raises(aiohttp.ClientConnectionError):
        await server.ask("/healthz")


async def test_closing_does_not_wait_for_ever(start_server: StartServer) -> None:
    never = FakeLookup(gate=asyncio.Event())
    server = await start_server(never, settings=HttpSettings(stop_s=0.05))
    stuck = asyncio.create_task(server.ask("/lookup/v2/topic/persistent/public/default/x"))
    await until(lambda: never.waiting == 1)
    async with asyncio.timeout(60):
        await server.server.stop()
    assert never.waiting == 0
    with pytest.raises(aiohttp.ClientConnectionError):
        await stuck
