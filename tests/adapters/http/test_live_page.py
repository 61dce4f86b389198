"""The live page over HTTP: its files, its events and what it has forwarded to the leader."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from aiohttp import web
from leader_queries import AT_MS, B1, B2, BUNDLE, OVERVIEW, FakeLeaderQueries

from loadmanager.adapters.http.assign_client import HttpAssignClient
from loadmanager.adapters.http.live.page import Feed, FeedLimits, Forwarder, OverviewReader
from loadmanager.adapters.http.routes import Role, Route, Target, json_reply
from loadmanager.adapters.http.security.guard import (
    ClusterKeyGuard,
    Guard,
    OwnNames,
    Rights,
    Tokens,
)
from loadmanager.admin.overview import OverviewDocument, Overviews
from loadmanager.config.sections import HttpSettings
from loadmanager.ports.lookup import LeaderElsewhere, Unavailable
from tests.adapters.http.conftest import RunningServer, StartServer, until

EVENTS = "/live/events"
FORWARD = {"X-Loadmanager-Forward": "page"}
SECRET = b"0123456789abcdef0123456789abcdef"


@dataclass
class FakeOverviews(Overviews):
    elsewhere: str = ""
    why_not: str = ""
    cluster: str = "east"
    asked: int = 0

    def overview(self) -> OverviewDocument:
        self.asked += 1
        if self.elsewhere:
            raise LeaderElsewhere(self.elsewhere)
        if self.why_not:
            raise Unavailable(self.why_not)
        return OVERVIEW.model_copy(update={"cluster": self.cluster})


@dataclass
class Viewer:
    response: aiohttp.ClientResponse
    kinds: list[str] = field(default_factory=list)

    async def next(self) -> tuple[str, dict[str, Any]]:
        async with asyncio.timeout(60):
            kind = (await self.response.content.readline()).decode()
            data = (await self.response.content.readline()).decode()
            assert await self.response.content.readline() == b"\n"
        return kind.removeprefix("event: ").strip(), json.loads(data.removeprefix("data: "))


@asynccontextmanager
async def watching(server: RunningServer, **headers: str) -> AsyncIterator[Viewer]:
    async with server.client.get(server.url + EVENTS, headers=headers) as response:
        assert response.status == 200, await response.text()
        yield Viewer(response)


def feed_of(service: FakeOverviews, line: HttpAssignClient | None = None, **limits: Any) -> Feed:
    return Feed(
        OverviewReader(service.overview, "b9:8080", line),
        FeedLimits(**{"interval_s": 0.02, **limits}),
    )


@pytest.fixture
async def line() -> AsyncIterator[HttpAssignClient]:
    one = HttpAssignClient()
    yield one
    await one.close()


async def test_the_page_loads_its_own_files_alone(start_server: StartServer) -> None:
    server = await start_server(feed=feed_of(FakeOverviews()), guard=Guard(Rights()))
    page = await server.ask("/")
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.findall(r"<script(?![^>]*src=)|<style|\son\w+=|style=", page.text)
    found = re.findall(r"(?:src|href)=\"([^\"]+)\"", page.text)
    own = [one for one in found if one.startswith("/live/")]
    assert set(found) - set(own) == {"#balance", "/openapi.json"}
    for one in own:
        got = await server.ask(one)
        assert (got.status, got.headers["X-Content-Type-Options"]) == (200, "nosniff")
        if one.endswith(".js") and "uplot" not in one:
            assert not re.findall(r"innerHTML|eval\(|https?://", got.text)
            imported = re.findall(r"from \"\./([^\"]+)\"", got.text)
            assert all([(await server.ask(f"/live/{name}")).status == 200 for name in imported])
    assert (await server.ask("/live/uplot.LICENSE")).status == 404
    assert (await server.ask("/live/..%2Fpage.py")).status == 404


async def test_the_first_event_is_the_whole_overview(start_server: StartServer) -> None:
    server = await start_server(feed=feed_of(FakeOverviews()))
    async with watching(server) as viewer:
        assert viewer.response.headers["Content-Type"] == "text/event-stream"
        kind, told = await viewer.next()
    assert (kind, told["servedBy"]) == ("overview", "b9:8080")
    seen = told["overview"]
    assert (seen["cluster"], seen["leader"], seen["epoch"]) == ("east", B1, 4)
    assert seen["course"] == [[AT_MS, 0.25, 0.5, 0.4]]
    assert seen["brokers"][0]["largestFraction"] == 0.5
    assert [one["gain"] for one in seen["tasks"]] == [
        {"before": 0.5, "expected": 0.4, "after": None},
        None,
    ]
    row = seen["refusals"][0]
    assert (row["reason"], row["count"], bool(row["meaning"])) == ("round_budget", 7, True)
    assert seen["missing"] == [{"broker": B2, "why": "left, or crashed", "sinceMs": AT_MS}]


async def test_it_is_read_once_for_all_viewers_if_any(start_server: StartServer) -> None:
    service = FakeOverviews()
    feed = feed_of(service, interval_s=3600.0)
    server = await start_server(feed=feed)
    await asyncio.sleep(0.05)
    assert service.asked == 0
    async with watching(server) as one, watching(server) as another, watching(server) as third:
        for viewer in (one, another, third):
            assert (await viewer.next())[0] == "overview"
        assert (service.asked, feed.viewers) == (1, 3)


async def test_a_viewer_that_is_gone_gives_its_place_back(start_server: StartServer) -> None:
    feed = feed_of(FakeOverviews(), most_viewers=2)
    server = await start_server(feed=feed)
    async with watching(server) as one, watching(server) as another:
        await one.next()
        await another.next()
        got = await server.ask(EVENTS)
        assert (got.status, "Retry-After" in got.headers) == (503, True)
        assert got.json()["reason"] == "2 viewers are connected, the most allowed"
    await until(lambda: feed.viewers == 0)
    async with watching(server) as viewer:
        assert (await viewer.next())[0] == "overview"


async def test_a_viewer_that_does_not_read_is_dropped(start_server: StartServer) -> None:
    # Events so large that the buffers on the way hold few of them.
    service = FakeOverviews(cluster="c" * 2_000_000)
    feed = feed_of(service, interval_s=0.005, write_s=0.3)
    server = await start_server(feed=feed)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
    writer.write(f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await until(lambda: feed.viewers == 1)
    await until(lambda: feed.viewers == 0)
    del reader
    writer.close()


async def test_a_stream_ends_after_its_time_and_with_the_server(start_server: StartServer) -> None:
    server = await start_server(feed=feed_of(FakeOverviews(), lasts_s=0.1))
    async with watching(server) as viewer:
        await _until_kind(viewer, "end")
        assert await viewer.response.content.read() == b""
    feed = feed_of(FakeOverviews(), interval_s=3600.0)
    server = await start_server(feed=feed, settings=HttpSettings(stop_s=60.0))
    async with watching(server) as viewer:
        await viewer.next()
        async with asyncio.timeout(30):
            await server.server.stop()
        assert (await viewer.next())[0] == "end"
    assert feed.viewers == 0


async def test_a_stream_follows_leaders(line: HttpAssignClient, start_server: StartServer) -> None:
    elsewhere = FakeOverviews(cluster="west")
    leader = await start_server(more_routes=tuple(elsewhere.routes()))
    service = FakeOverviews()
    server = await start_server(feed=feed_of(service, line))
    async with watching(server) as viewer:
        assert (await viewer.next())[1]["overview"]["cluster"] == "east"
        service.why_not = "no leader is at work"
        told = await _until_kind(viewer, "trouble")
        assert told == {"servedBy": "b9:8080", "reason": "no leader is at work"}
        service.why_not, service.elsewhere = "", leader.url + "/"
        told = await _until_kind(viewer, "overview")
        assert told["overview"]["cluster"] == "west"
        elsewhere.why_not = "it just ended"
        assert "503" in (await _until_kind(viewer, "trouble"))["reason"]


async def _until_kind(viewer: Viewer, wanted: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            kind, told = await viewer.next()
            if kind == wanted:
                return told


@pytest.mark.parametrize("answer", ["[1]", '{"a":', "null"])
async def test_what_a_leader_should_not_say_is_trouble(
    line: HttpAssignClient, start_server: StartServer, answer: str
) -> None:
    async def says(_request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        return web.Response(text=answer)

    route = Route("GET", "/admin/v2/loadmanager/overview", says, Role.READ)
    leader = await start_server(more_routes=(route,))
    server = await start_server(feed=feed_of(FakeOverviews(elsewhere=leader.url), line))
    async with watching(server) as viewer:
        assert (await viewer.next())[0] == "trouble"


def tokens_guard(tmp_path: Path) -> Guard:
    (tmp_path / "secret.key").write_bytes(SECRET)
    rights = Rights(readers=frozenset({"reader"}), lookup_roles=frozenset({"*"}))
    return Guard(rights, Tokens.of_secret_file(tmp_path / "secret.key"))


def bearer(name: str, valid_s: float = 60) -> str:
    claims = {"sub": name, "exp": time.time_ns() // 10**9 + valid_s}
    return f"Bearer {jwt.encode(claims, SECRET, 'HS256')}"


async def test_events_are_for_readers_alone(start_server: StartServer, tmp_path: Path) -> None:
    server = await start_server(feed=feed_of(FakeOverviews()), guard=tokens_guard(tmp_path))
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer x"}, 401),
        ({"Authorization": bearer("reader", -60)}, 401),
        ({"Authorization": bearer("somebody")}, 403),
        ({"Authorization": bearer("reader"), "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Authorization": bearer("reader"), "Sec-Fetch-Site": "same-site"}, 403),
    ):
        assert (await server.ask(EVENTS, headers=headers)).status == status
    assert (await server.ask(EVENTS, "POST")).status == 405
    head = await server.ask(EVENTS, "HEAD", headers={"Authorization": bearer("reader")})
    assert head.status == 200
    async with watching(server, Authorization=bearer("reader")) as viewer:
        assert (await viewer.next())[0] == "overview"


async def test_the_page_has_its_questions_forwarded_and_others_are_sent_on(
    line: HttpAssignClient, start_server: StartServer
) -> None:
    queries = FakeLeaderQueries()
    leader = await start_server(more_routes=tuple(queries.routes()))
    follower = FakeLeaderQueries(elsewhere=leader.url + "/")
    server = await start_server(
        more_routes=tuple(follower.routes()), forwarder=Forwarder(line, lambda _: "")
    )
    path = f"/admin/v2/loadmanager/explain?subject={BUNDLE.replace('/', '%2F')}"
    assert (await server.ask(path)).status == 307
    got = await server.ask(path, headers=FORWARD)
    assert (got.status, got.json()["subject"]) == (200, BUNDLE)
    unknown = await server.ask("/admin/v2/loadmanager/explain?subject=b7:1", headers=FORWARD)
    assert (unknown.status, "b7:1" in unknown.json()["reason"]) == (404, True)
    with_body = await server.ask(path, headers=FORWARD, data=b"{}")
    assert with_body.status == 400
    queries.elsewhere = server.url
    turned = await server.ask(path, headers=FORWARD)
    assert (turned.status, turned.json()["reason"]) == (503, f"{leader.url} does not lead any more")
    await leader.server.stop()
    gone = await server.ask(path, headers=FORWARD)
    assert (gone.status, "does not answer" in gone.json()["reason"]) == (503, True)


@pytest.mark.parametrize("withheld", ["", "because no registered sidecar advertises this URL"])
async def test_a_caller_keeps_its_own_right_with_the_leader(
    line: HttpAssignClient, start_server: StartServer, tmp_path: Path, withheld: str
) -> None:
    guard = tokens_guard(tmp_path)
    leader = await start_server(more_routes=tuple(FakeLeaderQueries().routes()), guard=guard)
    follower = FakeLeaderQueries(elsewhere=leader.url)
    server = await start_server(
        more_routes=tuple(follower.routes()),
        guard=guard,
        forwarder=Forwarder(line, lambda _: withheld),
    )
    path = "/admin/v2/loadmanager/decisions"
    assert (await server.ask(path, headers=FORWARD)).status == 401
    got = await server.ask(path, headers={**FORWARD, "Authorization": bearer("reader")})
    assert got.status == (401 if withheld else 200)


async def test_local_rights_go_along(line: HttpAssignClient, start_server: StartServer) -> None:
    """The leader sees the request come from elsewhere: by a name that is not its own."""
    seen: list[str] = []

    async def told(request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        seen.append(request.headers.get("Authorization", ""))
        return json_reply({"done": True})

    leader = await start_server(more_routes=(Route("PUT", "/x", told, Role.NOBODY),))

    async def elsewhere(_request: web.BaseRequest, target: Target) -> web.StreamResponse:
        from loadmanager.adapters.http.routes import Refused  # noqa: PLC0415

        raise Refused(307, "elsewhere", {"Location": leader.url + target.path})

    guard = ClusterKeyGuard(lambda: bytes(32), OwnNames(), lambda _: True)
    server = await start_server(
        more_routes=(Route("PUT", "/x", elsewhere),),
        guard=guard,
        forwarder=Forwarder(line, lambda _: ""),
    )
    got = await server.ask("/x", "PUT", headers={**FORWARD, "Origin": server.url})
    assert (got.status, got.json()) == (200, {"done": True})
    claims = jwt.decode(seen[0].removeprefix("Bearer "), bytes(32), ["HS256"])
    assert claims["right"] == "admin"
    foreign = await server.ask("/x", "PUT", headers={**FORWARD, "Origin": "http://evil.example"})
    assert foreign.status == 403
    assert len(seen) == 1
