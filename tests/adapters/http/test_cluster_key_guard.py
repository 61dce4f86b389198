"""Who may do what where nothing is configured: this host, others, and the cluster's tokens."""

import math
from collections.abc import Mapping

import jwt
import pytest
from aiohttp import web

from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.http.replies import Refused
from loadmanager.adapters.http.routes import Role, Route, Target
from loadmanager.adapters.http.security.cluster_key import ClusterKeyGuard, sign
from loadmanager.adapters.http.security.guard import Guard, Rights
from loadmanager.adapters.http.security.origin import OwnNames
from tests.adapters.http.conftest import (
    Reply,
    RunningServer,
    StartServer,
    Wire,
    exchange,
    get,
    seen_by_aiohttp,
    wired,
)

KEY = bytes(range(32))
NAMES = OwnNames(local=frozenset({"dev.internal"}), advertised=frozenset({"broker-1.example.org"}))
LOCAL, ELSEWHERE = "127.0.0.1", "10.1.2.3"
LOOKUP = "/lookup/v2/topic/persistent/public/default/x"
PARTITIONS = "/admin/v2/persistent/public/default/x/partitions"
BUNDLES = "/admin/v2/namespaces/public/default/bundles"
NAMESPACE = "/admin/v2/namespaces/public/other"


class Keyed:
    """A guarded server, and its key as ZooKeeper might have it now."""

    def __init__(self) -> None:
        self.key: bytes | None = KEY
        self.server: RunningServer

    async def ask(  # noqa: PLR0917 - a request has so many parts
        self,
        peer: str,
        path: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        host: str | None = "localhost:7750",
        wire: Wire | None = None,
    ) -> Reply:
        """Send one request from ``peer``."""
        told = {**({} if host is None else {"Host": host}), **(headers or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        version = "1.1" if host is not None else "1.0"
        raw = f"{method} {path} HTTP/{version}\r\n{lines}\r\n".encode()
        return await exchange(wire or wired(self.server, peer), raw)

    async def statuses(self, peer: str, **options: object) -> list[int]:
        """Return what lookups, reads and changes come to."""
        asked = [(LOOKUP, "GET"), (BUNDLES, "GET"), (f"{NAMESPACE}?x", "DELETE")]
        return [
            (await self.ask(peer, path, method, **options)).status  # type: ignore[arg-type]
            for path, method in asked
        ]


@pytest.fixture
async def keyed(start_server: StartServer) -> Keyed:
    made = Keyed()
    made.server = await start_server(guard=ClusterKeyGuard(lambda: made.key, NAMES))
    return made


def bearer(right: str, key: bytes = KEY, valid_s: int = 60) -> dict[str, str]:
    return {"Authorization": f"Bearer {sign(key, name='n', right=Role(right), valid_s=valid_s)}"}


ALL, LOOKUPS, NOTHING = [200, 200, 204], [200, 401, 401], [403, 403, 403]


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.:7750", "127.0.0.1:7750", "[::1]:7750"])
async def test_this_host_may_do_everything(keyed: Keyed, peer: str, host: str) -> None:
    assert await keyed.statuses(peer, host=host) == ALL


@pytest.mark.parametrize("peer", [ELSEWHERE, "fe80::1%eth0", "::ffff:10.0.0.1", "128.0.0.1"])
@pytest.mark.parametrize("host", ["localhost:7750", "broker-1.example.org:7750", "lookup", None])
async def test_others_look_up_and_do_nothing_else(keyed: Keyed, peer: str, host: str) -> None:
    assert await keyed.statuses(peer, host=host) == LOOKUPS


async def test_others_get_what_a_client_needs_and_whether_the_sidecar_lives(keyed: Keyed) -> None:
    for path in (PARTITIONS, "/healthz", "/readyz"):
        assert (await keyed.ask(ELSEWHERE, path)).status == 200
    reply = await keyed.ask(ELSEWHERE, "/metrics")
    assert (reply.status, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "loadmanager token --right" in reply.json()["reason"]


@pytest.mark.parametrize(
    "header",
    ["Forwarded", "X-Forwarded-For", "x-forwarded-host", "X-Real-IP", "Via", "X-Envoy-Peer"],
)
async def test_what_a_proxy_passes_on_is_from_elsewhere(keyed: Keyed, header: str) -> None:
    assert await keyed.statuses(LOCAL, headers={header: "x"}) == LOOKUPS


async def test_a_name_that_leads_here_gets_nothing(keyed: Keyed) -> None:
    for host in ("evil.example", "evil.example:7750", "localhost.evil.example", "[x]"):
        assert await keyed.statuses(LOCAL, host=host) == NOTHING
        assert await keyed.statuses(LOCAL, host=host, headers={"Forwarded": "x"}) == NOTHING
        assert await keyed.statuses(LOCAL, host=host, headers=bearer("read", b"x" * 32)) == NOTHING
    reply = await keyed.ask(LOCAL, LOOKUP, host="evil.example")
    assert "[sidecar] local_names" in reply.json()["reason"]


async def test_an_absolute_target_is_no_way_around_the_host(keyed: Keyed) -> None:
    assert (await keyed.ask(LOCAL, f"http://evil.example{BUNDLES}")).status == 403
    assert (await keyed.ask(LOCAL, f"http://localhost{BUNDLES}")).status == 200
    reply = await keyed.ask(LOCAL, f"http://localhost{BUNDLES}", host="evil.example")
    assert reply.status == 403


async def test_names_of_its_own_are_told_apart_from_those_of_this_host_alone(
    keyed: Keyed,
) -> None:
    assert await keyed.statuses(LOCAL, host="Dev.Internal:7750") == ALL
    for host in ("broker-1.example.org:7750", "10.0.0.7:7750", None):
        assert await keyed.statuses(LOCAL, host=host) == LOOKUPS


@pytest.mark.parametrize("peer", [LOCAL, ELSEWHERE])
async def test_a_token_gives_the_right_in_it(keyed: Keyed, peer: str) -> None:
    host = "lookup.example.org"
    assert await keyed.statuses(peer, host=host, headers=bearer("lookup")) == [200, 403, 403]
    assert await keyed.statuses(peer, host=host, headers=bearer("read")) == [200, 200, 403]
    assert await keyed.statuses(peer, host=host, headers=bearer("admin")) == ALL


def forged(**claims: object) -> dict[str, str]:
    now_s = SystemClock().wall_ms() // 1000
    told = {"sub": "n", "right": "admin", "exp": now_s + 60, **claims}
    kept = {name: value for name, value in told.items() if value is not None}
    return {"Authorization": f"Bearer {jwt.encode(kept, KEY, 'HS256')}"}


@pytest.mark.parametrize(
    "headers",
    [
        bearer("admin", key=b"x" * 32),
        bearer("admin", valid_s=-60),
        forged(right="owner"),
        forged(right=["admin"]),
        forged(right="none"),
        forged(right=None),
        forged(sub=None),
        forged(exp=None),
        {"Authorization": "Basic x"},
        {"Authorization": ""},
    ],
)
@pytest.mark.parametrize("peer", [LOCAL, ELSEWHERE])
async def test_a_token_that_proves_nothing_leaves_what_others_may(
    keyed: Keyed, headers: dict[str, str], peer: str
) -> None:
    assert await keyed.statuses(peer, headers=headers) == LOOKUPS
    reply = await keyed.ask(peer, BUNDLES, headers=headers)
    assert "loadmanager token --right" in reply.json()["reason"]


async def test_a_clock_that_is_ahead_does_not_spoil_tokens(keyed: Keyed) -> None:
    ahead = forged(iat=SystemClock().wall_ms() // 1000 + 3600)
    assert (await keyed.ask(ELSEWHERE, BUNDLES, headers=ahead)).status == 200


async def test_before_the_key_is_known_tokens_are_told_to_come_back(keyed: Keyed) -> None:
    keyed.key = None
    reply = await keyed.ask(ELSEWHERE, BUNDLES, headers=bearer("read"))
    assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
    assert await keyed.statuses(LOCAL) == ALL
    assert await keyed.statuses(ELSEWHERE) == LOOKUPS


async def test_a_replaced_key_counts_at_once(keyed: Keyed) -> None:
    former = bearer("admin")
    assert (await keyed.ask(ELSEWHERE, BUNDLES, headers=former)).status == 200
    keyed.key = b"another key of the cluster......"
    assert (await keyed.ask(ELSEWHERE, BUNDLES, headers=former)).status == 401
    assert (await keyed.ask(ELSEWHERE, BUNDLES, headers=bearer("read", keyed.key))).status == 200


async def test_remembered_headers_never_carry_a_right_to_another_peer(keyed: Keyed) -> None:
    foreign = b"Host: evil.example\r\n\r\n"
    for _ in range(3):
        assert (await exchange(wired(keyed.server, ELSEWHERE), get("x", foreign))).status == 200
    seen = seen_by_aiohttp(keyed.server)
    assert (await exchange(wired(keyed.server, ELSEWHERE), get("x", foreign))).status == 200
    assert seen_by_aiohttp(keyed.server) == seen  # it is remembered
    assert (await exchange(wired(keyed.server, LOCAL), get("x", foreign))).status == 403


async def test_headers_whose_right_is_a_tokens_are_not_remembered(keyed: Keyed) -> None:
    token = bearer("lookup")["Authorization"]
    head = f"Host: evil.example\r\nAuthorization: {token}\r\n\r\n".encode()
    for _ in range(3):
        assert (await exchange(wired(keyed.server), get("x", head))).status == 200
    keyed.key = b"another key of the cluster......"
    assert (await exchange(wired(keyed.server), get("x", head))).status == 403


async def test_lookups_of_this_host_and_of_others_stay_quick(keyed: Keyed) -> None:
    for peer in (LOCAL, ELSEWHERE):
        head = b"Host: localhost\r\n\r\n"
        for _ in range(3):
            assert (await exchange(wired(keyed.server, peer), get("x", head))).status == 200
        seen = seen_by_aiohttp(keyed.server)
        assert (await exchange(wired(keyed.server, peer), get("x", head))).status == 200
        assert seen_by_aiohttp(keyed.server) == seen


async def test_over_a_real_socket_this_host_may_do_everything(start_server: StartServer) -> None:
    server = await start_server(guard=ClusterKeyGuard(lambda: None, NAMES))
    assert (await server.ask(BUNDLES)).status == 200
    assert (await server.ask(BUNDLES, headers={"Host": "evil.example"})).status == 403


FOREIGN_PAGES = (
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:3000"},
    {"Origin": "http://evil.example:7750", "Host": "evil.example:7750"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost:7750"},
)


@pytest.mark.parametrize("page", FOREIGN_PAGES)
async def test_pages_of_other_sites_change_nothing_in_any_mode(
    start_server: StartServer, page: dict[str, str]
) -> None:
    for guard in (
        ClusterKeyGuard(lambda: KEY, NAMES),
        Guard(Rights(anonymous=Role.ADMIN)),
        Guard(Rights(anonymous=Role.ADMIN), names=NAMES, local_only=True),
    ):
        keyed = Keyed()
        keyed.server = await start_server(guard=guard)
        for headers in (page, {**page, **bearer("admin")}):
            reply = await keyed.ask(LOCAL, NAMESPACE, "DELETE", headers)
            assert reply.status == 403
            assert reply.json()["reason"]


async def test_its_own_pages_may_change_what_their_reader_may(keyed: Keyed) -> None:
    own = {"Origin": "http://localhost:7750", "Sec-Fetch-Site": "same-origin"}
    assert (await keyed.ask(LOCAL, NAMESPACE, "DELETE", own)).status == 204
    assert (
        await keyed.ask(LOCAL, BUNDLES, "GET", {"Origin": "https://evil.example"})
    ).status == 200


async def test_where_everybody_is_on_this_host_a_name_that_leads_here_gets_nothing(
    start_server: StartServer,
) -> None:
    keyed = Keyed()
    guard = Guard(Rights(anonymous=Role.ADMIN), names=NAMES, local_only=True)
    keyed.server = await start_server(guard=guard)
    assert await keyed.statuses(LOCAL, host="evil.example") == NOTHING
    assert await keyed.statuses(LOCAL) == ALL


def test_a_token_says_who_may_do_what_and_until_when() -> None:
    claims = jwt.decode(sign(KEY, name="me", right=Role.READ, valid_s=60), KEY, ["HS256"])
    assert (claims["sub"], claims["right"]) == ("me", "read")
    assert math.isclose(claims["exp"] - claims["iat"], 60)


async def test_who_is_sent_on_from_this_host_gets_a_token_for_what_was_asked(
    start_server: StartServer,
) -> None:
    key: list[bytes | None] = [KEY]
    leader = "http://broker-2.example.org:7750"
    where = [leader]

    async def send_on(_request: web.BaseRequest, target: Target) -> web.StreamResponse:
        raise Refused(307, "elsewhere", {"Location": where[0] + target.path})

    keyed = Keyed()
    keyed.server = await start_server(
        guard=ClusterKeyGuard(lambda: key[0], NAMES, lambda url: url == leader),
        more_routes=(Route("GET", "/ask", send_on, Role.READ), Route("PUT", "/ask", send_on)),
    )
    for method, right in (("GET", "read"), ("PUT", "admin")):
        reply = await keyed.ask(LOCAL, "/ask", method)
        assert (reply.status, reply.headers["Cache-Control"]) == (307, "no-store")
        claims = jwt.decode(reply.headers["X-Loadmanager-Token"], KEY, ["HS256"])
        assert (claims["right"], claims["exp"] - claims["iat"]) == (right, 60)
    strangers = [
        await keyed.ask(ELSEWHERE, "/ask", headers=bearer("read")),
        await keyed.ask(LOCAL, "/ask", headers=bearer("read")),
    ]
    where[0] = f"{leader}.evil.example"
    strangers.append(await keyed.ask(LOCAL, "/ask"))
    where[0], key[0] = leader, None
    strangers.append(await keyed.ask(LOCAL, "/ask"))
    assert [one.status for one in strangers] == [307] * 4
    assert [one for one in strangers if "X-Loadmanager-Token" in one.headers] == []
