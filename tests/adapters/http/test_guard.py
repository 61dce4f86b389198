"""Who may do what at a real server: with tokens, with certificates, and without either."""

import logging
import time
from pathlib import Path
from typing import Any, Literal

import aiohttp
import jwt
import pytest
import structlog
from aiohttp import web
from structlog.testing import capture_logs
from tls_files import Files

from loadmanager.adapters.http.assign_client import ASSIGN_PATH
from loadmanager.adapters.http.routes import Refused, Role, Route, Target, empty_reply
from loadmanager.adapters.http.security.guard import Guard, Rights, Tokens
from loadmanager.adapters.http.security.tls import ClientTls, TlsFiles
from tests.adapters.http.conftest import (
    FakeLookup,
    RunningServer,
    StartServer,
    exchange,
    wired,
)

SECRET = b"0123456789abcdef0123456789abcdef"
LOOKUP = "/lookup/v2/topic/persistent/public/default/x"
BUNDLES = "/admin/v2/namespaces/public/default/bundles"
RIGHTS = Rights(
    admins=frozenset({"operator"}), readers=frozenset({"ui"}), lookup_roles=frozenset({"*"})
)


def token(name: str, **claims: Any) -> str:
    return jwt.encode({"sub": name, **claims}, SECRET, "HS256")


def bearer(name: str, **claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(name, **claims)}"}


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    (tmp_path / "secret.key").write_bytes(SECRET)
    return Guard(RIGHTS, Tokens.of_secret_file(tmp_path / "secret.key"))


@pytest.fixture
async def guarded(start_server: StartServer, guard: Guard) -> RunningServer:
    return await start_server(guard=guard)


@pytest.mark.parametrize(
    ("name", "looks_up", "reads", "changes"),
    [("client", 200, 403, 403), ("ui", 200, 200, 403), ("operator", 200, 200, 204)],
)
async def test_each_right_includes_the_ones_before_it(
    guarded: RunningServer, name: str, looks_up: int, reads: int, changes: int
) -> None:
    headers = bearer(name)
    assert (await guarded.ask(LOOKUP, headers=headers)).status == looks_up
    assert (await guarded.ask(BUNDLES, headers=headers)).status == reads
    made = await guarded.ask(
        "/admin/v2/namespaces/public/other", "PUT", json={"numBundles": 2}, headers=headers
    )
    assert made.status == changes


@pytest.mark.parametrize(
    "header",
    [
        *(None, "", "Bearer", "Basic b3A6cHc=", "Bearer nonsense", f"Bearer {'x' * 7000}"),
        *("Bearer a.b.c", "Bearer a\udcff.b.c"),
    ],
)
async def test_without_a_proof_it_only_lives(guarded: RunningServer, header: str | None) -> None:
    raw = b"" if header is None else b"Authorization: " + header.encode("utf-8", "surrogateescape")
    head = b" HTTP/1.1\r\nHost: x\r\n" + raw + b"\r\n" * bool(raw) + b"\r\n"
    for path in (LOOKUP, BUNDLES, "/metrics"):
        reply = await exchange(wired(guarded), b"GET " + path.encode() + head)
        assert (reply.status, reply.headers["WWW-Authenticate"][:6]) == (401, "Bearer")
        assert header is not None or "credentials" in reply.json()["reason"]
    assert (await exchange(wired(guarded), b"GET /healthz" + head)).status == 200


async def test_a_token_that_expired_is_refused_even_where_the_answer_is_remembered(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    later_s, wall_s, counter_s = 0.0, time.time, time.perf_counter  # noqa: TID251 - tokens are in wall time
    monkeypatch.setattr(time, "perf_counter", lambda: counter_s() + later_s)
    tokens = Tokens(SECRET, ("HS256",), clock=lambda: wall_s() + later_s)
    server = await start_server(guard=Guard(RIGHTS, tokens))
    soon = bearer("client", exp=int(wall_s()) + 1_000)
    for _ in range(3):
        assert (await server.ask(LOOKUP, headers=soon)).status == 200
    later_s = 1_006.0  # The check allows clocks to be 5 s apart.
    reply = await server.ask(LOOKUP, headers=soon)
    assert (reply.status, "expired" in reply.json()["reason"]) == (401, True)


async def test_every_change_is_written_down_with_who_asked(guarded: RunningServer) -> None:
    path = "/admin/v2/namespaces/public/other"
    with capture_logs() as logs:
        for headers in (bearer("operator"), bearer("operator"), bearer("client"), {}):
            await guarded.ask(path, "PUT", json={"numBundles": 2}, headers=headers)
        await guarded.ask(BUNDLES, headers=bearer("operator"))
    written = [one for one in logs if one["event"] == "admin.change.answered"]
    assert [(one["caller"], one["status"]) for one in written] == [
        ("operator", 204),
        ("operator", 409),
        ("client", 403),
        ("anonymous", 401),
    ]
    assert {(e["method"], e["path"], e["remote"]) for e in written} == {("PUT", path, "127.0.0.1")}
    assert token("operator") not in str(logs)


async def test_changes_alone_are_written_down_at_any_level(guarded: RunningServer) -> None:
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    asked = {"bundle": "public/default/0x00000000_0x40000000"}
    try:
        with capture_logs() as logs:
            path = "/admin/v2/namespaces/public/other"
            await guarded.ask(path, "PUT", json={"numBundles": 2}, headers=bearer("operator"))
            # What sidecars ask of the leader changes nothing.
            reply = await guarded.ask(ASSIGN_PATH, "POST", json=asked, headers=bearer("client"))
    finally:
        structlog.configure(wrapper_class=before)
    assert [(one["event"], one["path"]) for one in logs] == [("admin.change.answered", path)]
    assert reply.status not in {401, 403}


async def test_a_secret_to_set_is_not_written_down(start_server: StartServer, guard: Guard) -> None:
    async def put(_request: web.BaseRequest, target: Target) -> web.StreamResponse:
        if target.captured[0] == "log.level":
            return empty_reply(204)
        raise Refused(412, "not dynamic")

    path = "/admin/v2/brokers/configuration"
    server = await start_server(guard=guard, more_routes=[Route("POST", f"{path}/{{}}/{{}}", put)])
    with capture_logs() as logs:
        for headers in (bearer("operator"), bearer("client")):
            await server.ask(f"{path}/zookeeper.digest_password/hunter2", "POST", headers=headers)
        await server.ask(f"{path}/log.level/debug", "POST", headers=bearer("operator"))
    written = [one["path"] for one in logs if one["event"] == "admin.change.answered"]
    hidden = f"{path}/zookeeper.digest_password/********"
    assert written == [hidden, hidden, f"{path}/log.level/debug"]


async def test_strangers_may_do_what_they_are_allowed(start_server: StartServer) -> None:
    server = await start_server(guard=Guard(Rights(anonymous=Role.LOOKUP)))
    assert (await server.ask(LOOKUP)).status == 200
    assert (await server.ask(LOOKUP, headers=bearer("anybody"))).status == 200
    assert (await server.ask(BUNDLES)).status == 401


def test_a_caller_without_a_role_has_that_of_strangers() -> None:
    rights = Rights(admins=frozenset({"operator"}), anonymous=Role.READ)
    assert (rights.of("somebody"), rights.of("")) == (Role.READ, Role.READ)
    assert Rights().of("somebody") is Role.NOBODY
    assert Rights(lookup_roles=frozenset({"*"})).of("") is Role.NOBODY


class Mutual:
    def __init__(self, files: Files, server: RunningServer) -> None:
        self._files = files
        self._server = server

    async def ask(
        self, path: str, name: str = "", times: int = 1, issuer: Files | None = None
    ) -> list[int]:
        shown = (issuer or self._files).client(name) if name else (None, None)
        context = ClientTls(self._files.authorities, *shown).context
        connector = aiohttp.TCPConnector(ssl=context, limit=1)
        async with aiohttp.ClientSession(connector=connector) as session:
            found = []
            for _ in range(times):
                async with session.get(self._server.url + path) as response:
                    await response.read()
                    found.append(response.status)
            return found


async def mutual(
    start_server: StartServer, files: Files, verify: Literal["optional", "required"]
) -> Mutual:
    tls = TlsFiles(files.certificate, files.key, files.authorities, verify)
    return Mutual(files, await start_server(FakeLookup(), guard=Guard(RIGHTS), tls=tls))


async def test_a_certificate_is_a_proof_of_its_common_name_on_its_own_connection(
    start_server: StartServer, tmp_path: Path
) -> None:
    files = Files(tmp_path)
    optional = await mutual(start_server, files, "optional")
    assert await optional.ask(BUNDLES, "ui") == [200]
    assert await optional.ask(BUNDLES, "client") == [403]
    assert await optional.ask(BUNDLES) == [401]
    assert await optional.ask(LOOKUP, "client", times=4) == [200, 200, 200, 200]
    assert await optional.ask(LOOKUP, times=2) == [401, 401]
    (tmp_path / "other").mkdir()
    with pytest.raises(aiohttp.ClientError):
        await optional.ask(BUNDLES, "operator", issuer=Files(tmp_path / "other"))
    required = await mutual(start_server, files, "required")
    assert await required.ask(LOOKUP, "client") == [200]
    with pytest.raises(aiohttp.ClientError):
        await required.ask(LOOKUP)
