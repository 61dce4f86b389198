"""Who may do what where nothing is configured: this host, others, and the cluster's tokens."""

from collections.abc import Mapping

import jwt
import pytest
from aiohttp import web

from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.http.routes import Refused, Role, Route, Target
from loadmanager.adapters.http.security.guard import ClusterKeyGuard, Guard, OwnNames, Rights, sign
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
        told = {**({} if host is None else {"Host": host}), **(headers or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        version = "1.1" if host is not None else "1.0"
        raw = f"{method} {path} HTTP/{version}\r\n{lines}\r\n".encode()
        return await exchange(wire or wired(self.server, peer), raw)

    async def statuses(self, peer: str, **options: object) -> list[int]:
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


VALID_S = 86_400  # longer than the tests run: tokens in tables are made before the first


def bearer(right: str, key: bytes = KEY, valid_s: int = VALID_S) -> dict[str, str]:
    return {"Authorization": f"Bearer {sign(key, name='n', right=Role(right), valid_s=valid_s)}"}


ALL, READS, LOOKUPS, NOTHING = [200, 200, 204], [200, 200, 403], [200, 401, 401], [403] * 3


def forged(**claims: object) -> dict[str, str]:
    now_s = SystemClock().wall_ms() // 1000
    told = {"sub": "n", "right": "admin", "exp": now_s + VALID_S, **claims}
    kept = {name: value for name, value in told.items() if value is not None}
    return {"Authorization": f"Bearer {jwt.encode(kept, KEY, 'HS256')}"}


LOCALS = ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")
OTHERS = (ELSEWHERE, "fe80::1%eth0", "::ffff:10.0.0.1", "128.0.0.1")
LOCAL_NAMES = ("localhost", "LOCALHOST.:7750", "127.0.0.1:7750", "[::1]:7750", "Dev.Internal:7750")
OWN_NAMES = ("broker-1.example.org:7750", "10.0.0.7:7750", None)
FOREIGN_NAMES = ("evil.example", "evil.example:7750", "localhost.evil.example", "[x]")
PROXYS = ("Forwarded", "X-Forwarded-For", "x-forwarded-host", "X-Real-IP", "Via", "X-Envoy-Peer")
WORTHLESS = (
    *(bearer("admin", key=b"x" * 32), bearer("admin", valid_s=-60)),
    *(forged(right="owner"), forged(right=["admin"]), forged(right="none"), forged(right=None)),
    *(forged(sub=None), forged(exp=None), {"Authorization": "Basic x"}, {"Authorization": ""}),
)
NOT_TRUSTED: tuple[dict[str, str], ...] = ({}, {"Forwarded": "x"}, bearer("read", b"x" * 32))
AHEAD = forged(right="read", iat=SystemClock().wall_ms() // 1000 + 3600)


@pytest.mark.parametrize(
    ("peer", "host", "headers", "statuses"),
    [
        *((peer, host, {}, ALL) for peer in LOCALS for host in LOCAL_NAMES),
        *((peer, host, {}, LOOKUPS) for peer in OTHERS for host in ("localhost:7750", "lookup")),
        *((peer, host, {}, LOOKUPS) for peer in (LOCAL, *OTHERS) for host in OWN_NAMES),
        *((LOCAL, "localhost:7750", {header: "x"}, LOOKUPS) for header in PROXYS),
        # A name that leads here gets nothing.
        *((LOCAL, host, more, NOTHING) for host in FOREIGN_NAMES for more in NOT_TRUSTED),
        *(
            (peer, "lookup.example.org", bearer(right), statuses)
            for peer in (LOCAL, ELSEWHERE)
            for right, statuses in {"lookup": [200, 403, 403], "read": READS, "admin": ALL}.items()
        ),
        (ELSEWHERE, "lookup", AHEAD, READS),  # Clocks differ.
        *(
            (peer, "localhost:7750", more, LOOKUPS)
            for peer in (LOCAL, ELSEWHERE)
            for more in WORTHLESS
        ),
    ],
)
async def test_who_may_do_what(
    keyed: Keyed, *, peer: str, host: str | None, headers: dict[str, str], statuses: list[int]
) -> None:
    assert await keyed.statuses(peer, host=host, headers=headers) == statuses
    if statuses == LOOKUPS and peer == ELSEWHERE:
        for path in (PARTITIONS, "/healthz", "/readyz"):
            assert (await keyed.ask(peer, path, host=host, headers=headers)).status == 200
        reply = await keyed.ask(peer, "/metrics", host=host, headers=headers)
        assert (reply.status, reply.headers["WWW-Authenticate"][:6]) == (401, "Bearer")
        assert "loadmanager token --right" in reply.json()["reason"]
    elif statuses == NOTHING and not headers:
        reply = await keyed.ask(peer, LOOKUP, host=host)
        assert "[sidecar] local_names" in reply.json()["reason"]


async def test_an_absolute_target_is_no_way_around_the_host(keyed: Keyed) -> None:
    assert (await keyed.ask(LOCAL, f"http://evil.example{BUNDLES}")).status == 403
    assert (await keyed.ask(LOCAL, f"http://localhost{BUNDLES}")).status == 200
    reply = await keyed.ask(LOCAL, f"http://localhost{BUNDLES}", host="evil.example")
    assert reply.status == 403


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


EVIL, LOCALHOST = b"Host: evil.example\r\n", b"Host: localhost\r\n"
SHOWN = f"Authorization: {bearer('lookup')['Authorization']}\r\n".encode()


@pytest.mark.parametrize(
    ("peer", "head", "other", "status"),
    [
        (LOCAL, LOCALHOST, ELSEWHERE, 200),
        (ELSEWHERE, LOCALHOST, LOCAL, 200),
        (ELSEWHERE, EVIL, LOCAL, 403),  # What is remembered of one is no right of another.
        (LOCAL, EVIL + SHOWN, LOCAL, 403),  # The token's right is not remembered.
    ],
)
async def test_what_is_remembered_is_quick_and_lends_no_right(
    keyed: Keyed, peer: str, head: bytes, other: str, status: int
) -> None:
    lookup = get("x", head + b"\r\n")
    for _ in range(3):
        assert (await exchange(wired(keyed.server, peer), lookup)).status == 200
    seen = seen_by_aiohttp(keyed.server)
    assert (await exchange(wired(keyed.server, peer), lookup)).status == 200
    assert (seen_by_aiohttp(keyed.server) == seen) is (SHOWN not in head)
    keyed.key = b"another key of the cluster......"
    assert (await exchange(wired(keyed.server, other), lookup)).status == status


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
async def test_other_sites_change_nothing(start_server: StartServer, page: dict[str, str]) -> None:
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


async def test_where_all_are_local_a_foreign_name_is_refused(start_server: StartServer) -> None:
    keyed = Keyed()
    guard = Guard(Rights(anonymous=Role.ADMIN), names=NAMES, local_only=True)
    keyed.server = await start_server(guard=guard)
    assert await keyed.statuses(LOCAL, host="evil.example") == NOTHING
    assert await keyed.statuses(LOCAL) == ALL


async def test_who_is_sent_on_gets_a_token_for_what_was_asked(start_server: StartServer) -> None:
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
