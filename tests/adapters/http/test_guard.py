"""Who may do what at a real server: with tokens, with certificates, and without either."""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
import structlog
from aiohttp import web
from structlog.testing import capture_logs
from tls_files import Files

from loadmanager.adapters.http.assign import ASSIGN_PATH
from loadmanager.adapters.http.replies import Refused, empty_reply
from loadmanager.adapters.http.routes import Role, Route, Target
from loadmanager.adapters.http.security.guard import Guard, Rights
from loadmanager.adapters.http.security.tls import ClientTls, TlsFiles
from loadmanager.adapters.http.security.tokens import Tokens
from tests.adapters.http.conftest import (
    FakeLookup,
    RunningServer,
    StartServer,
    exchange,
    get,
    seen_by_aiohttp,
    wired,
)

SECRET = b"0123456789abcdef0123456789abcdef"
LOOKUP = "/lookup/v2/topic/persistent/public/default/x"
BUNDLES = "/admin/v2/namespaces/public/default/bundles"
RIGHTS = Rights(
    admins=frozenset({"operator"}),
    readers=frozenset({"dashboard"}),
    lookers=frozenset({"*"}),
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
    [("client", 200, 403, 403), ("dashboard", 200, 200, 403), ("operator", 200, 200, 204)],
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


async def test_without_a_proof_nothing_is_answered_but_whether_it_lives(
    guarded: RunningServer,
) -> None:
    for path in (LOOKUP, BUNDLES, "/metrics"):
        reply = await guarded.ask(path)
        assert (reply.status, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "credentials" in reply.json()["reason"]
    assert (await guarded.ask("/healthz")).status == 200


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Basic b3A6cHc=", "Bearer nonsense", f"Bearer {'x' * 7000}", "Bearer a.b.c"],
)
async def test_a_worthless_proof_is_refused(guarded: RunningServer, header: str) -> None:
    reply = await guarded.ask(LOOKUP, headers={"Authorization": header})
    assert reply.status == 401
    assert reply.headers["WWW-Authenticate"].startswith("Bearer")


async def test_bytes_that_are_no_text_are_refused_like_any_worthless_proof(
    guarded: RunningServer,
) -> None:
    raw = b"Host: x\r\nAuthorization: Bearer a\xff.b.c\r\n\r\n"
    assert (await exchange(wired(guarded), get("x", raw))).status == 401


async def test_a_token_that_expired_is_refused_even_where_the_answer_is_remembered(
    guarded: RunningServer,
) -> None:
    # The check allows clocks to be 5 s apart.
    soon = bearer("client", exp=int(time.time()) - 2)  # noqa: TID251 - tokens are in wall time
    assert (await guarded.ask(LOOKUP, headers=soon)).status == 200
    async with asyncio.timeout(60):
        while (await guarded.ask(LOOKUP, headers=soon)).status == 200:  # noqa: ASYNC110 - clocks set no event
            await asyncio.sleep(0.05)
    reply = await guarded.ask(LOOKUP, headers=soon)
    assert (reply.status, "expired" in reply.json()["reason"]) == (401, True)


def head(name: str) -> bytes:
    return f"Host: x\r\nAuthorization: Bearer {token(name)}\r\n\r\n".encode()


async def test_known_lookups_stay_quick_for_callers_who_proved_themselves(
    guarded: RunningServer,
) -> None:
    wire = wired(guarded)
    for _ in range(3):
        assert (await exchange(wire, get("x", head("client")))).status == 200
    wire = wired(guarded)
    seen = seen_by_aiohttp(guarded)
    wire.send(get("x", head("client")))
    assert wire.responses == 1
    assert seen_by_aiohttp(guarded) == seen


async def test_what_one_caller_may_have_is_not_given_to_another(guarded: RunningServer) -> None:
    for _ in range(3):
        assert (await exchange(wired(guarded), get("x", head("client")))).status == 200
    assert (await exchange(wired(guarded), get("x"))).status == 401
    forged = head("client").replace(b".", b"x.", 1)
    assert (await exchange(wired(guarded), get("x", forged))).status == 401


async def test_every_change_is_written_down_with_who_asked_and_what_came_of_it(
    guarded: RunningServer,
) -> None:
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
    assert {(one["method"], one["path"], one["remote"]) for one in written} == {
        ("PUT", path, "127.0.0.1")
    }
    assert token("operator") not in str(logs)


async def test_changes_are_written_down_even_where_only_errors_are_logged(
    guarded: RunningServer,
) -> None:
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        with capture_logs() as logs:
            path = "/admin/v2/namespaces/public/other"
            await guarded.ask(path, "PUT", json={"numBundles": 2}, headers=bearer("operator"))
    finally:
        structlog.configure(wrapper_class=before)
    assert [one["event"] for one in logs] == ["admin.change.answered"]


async def test_what_sidecars_ask_of_the_leader_is_no_change_to_write_down(
    guarded: RunningServer,
) -> None:
    asked = {"bundle": "public/default/0x00000000_0x40000000"}
    with capture_logs() as logs:
        reply = await guarded.ask(ASSIGN_PATH, "POST", json=asked, headers=bearer("client"))
    assert reply.status not in {401, 403}
    assert [one for one in logs if one["event"] == "admin.change.answered"] == []


async def test_a_secret_that_somebody_tries_to_set_is_not_written_down(
    start_server: StartServer, guard: Guard
) -> None:
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
    assert Rights(lookers=frozenset({"*"})).of("") is Role.NOBODY


class Mutual:
    """A server that asks for certificates, and clients with and without one."""

    def __init__(self, files: Files, server: RunningServer) -> None:
        self._files = files
        self._server = server

    async def ask(
        self, path: str, name: str = "", times: int = 1, issuer: Files | None = None
    ) -> list[int]:
        """Ask on one connection, as ``name`` or as nobody."""
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


@pytest.fixture
async def mutual(start_server: StartServer, tmp_path: Path) -> Mutual:
    files = Files(tmp_path)
    tls = TlsFiles(files.certificate, files.key, files.authorities, "optional")
    return Mutual(files, await start_server(FakeLookup(), guard=Guard(RIGHTS), tls=tls))


async def test_a_certificate_is_a_proof_of_its_common_name(mutual: Mutual) -> None:
    assert await mutual.ask(BUNDLES, "dashboard") == [200]
    assert await mutual.ask(BUNDLES, "client") == [403]
    assert await mutual.ask(BUNDLES) == [401]


async def test_the_answers_of_a_certified_connection_are_not_given_to_another(
    mutual: Mutual,
) -> None:
    assert await mutual.ask(LOOKUP, "client", times=4) == [200, 200, 200, 200]
    assert await mutual.ask(LOOKUP, times=2) == [401, 401]


async def test_a_certificate_can_be_required(start_server: StartServer, tmp_path: Path) -> None:
    files = Files(tmp_path)
    tls = TlsFiles(files.certificate, files.key, files.authorities, "required")
    mutual = Mutual(files, await start_server(FakeLookup(), guard=Guard(RIGHTS), tls=tls))
    assert await mutual.ask(LOOKUP, "client") == [200]
    with pytest.raises(aiohttp.ClientError):
        await mutual.ask(LOOKUP)


async def test_a_certificate_of_another_authority_proves_nothing(
    mutual: Mutual, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(aiohttp.ClientError):
        await mutual.ask(BUNDLES, "operator", issuer=Files(tmp_path / "other"))
