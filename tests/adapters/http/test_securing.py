"""What a sidecar proves itself with: looked at when it starts, and shown to sidecars alone."""

from collections.abc import Mapping
from pathlib import Path

import jwt
import pytest
from aiohttp import web
from tls_files import Files

from loadmanager.adapters.http.assign_client import HttpAssignClient, HttpTopicsClient
from loadmanager.adapters.http.routes import Role
from loadmanager.adapters.http.security.guard import (
    Caller,
    ClusterKeyGuard,
    Guard,
    OwnNames,
    Rights,
)
from loadmanager.adapters.http.security.tls import TlsFiles
from loadmanager.adapters.http.security.tokens import KeyUnusable, Tokens
from loadmanager.config import Config
from loadmanager.core.ids import Namespace
from loadmanager.ports.lookup import Unavailable
from loadmanager.wiring.sidecar import make_leader_line
from tests.adapters.http.conftest import FakeLookup, RunningServer, StartServer
from tests.adapters.http.test_leader_line import BUNDLE, leader_at

KEY = bytes(range(32))


def config(tls: Mapping[str, str] | None = None, **security: str) -> Config:
    return Config.model_validate(
        {"broker": {"id": "b1:8080"}, "security": security, "tls": dict(tls or {})}
    )


def line_of(made: Config, *registered: str, key: bytes | None = KEY) -> HttpAssignClient:
    return make_leader_line(made, lambda: key, lambda url: url in registered)


@pytest.mark.parametrize(
    ("content", "why"), [(None, "No such file or directory"), (b"\xff", "can't decode")]
)
def test_a_token_that_cannot_be_read_is_told_at_the_start(
    content: bytes | None, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "sidecar.jwt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KeyUnusable, match=f"{path}: .*{why}.*; expected a file with a token"):
        line_of(config(own_token_file=str(path)))


async def test_a_token_that_can_be_read_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.jwt"
    path.write_text("a.b.c")
    await line_of(config(own_token_file=str(path))).close()


def named(name: str, key: bytes = KEY) -> str:
    return jwt.encode({"sub": name}, key, "HS256")


@pytest.fixture
async def leader(start_server: StartServer) -> RunningServer:
    guard = Guard(Rights(lookers=frozenset({"sidecar"})), Tokens(KEY, ("HS256",)))
    server = await start_server(guard=guard)
    server.lookup.leader = leader_at(server.url)
    return server


async def test_a_token_is_shown_to_registered_sidecars_alone(
    leader: RunningServer, tmp_path: Path
) -> None:
    path = tmp_path / "sidecar.jwt"
    path.write_text(named("sidecar"))
    made = config(own_token_file=str(path))
    known, unknown = line_of(made, leader.url), line_of(made, leader.url + "0")
    try:
        assert await known.assign(leader_at(leader.url + "/"), BUNDLE) == "b1:8080"
        with pytest.raises(Unavailable, match="without a token, because no registered sidecar"):
            await unknown.assign(leader_at(leader.url), BUNDLE)
        with pytest.raises(Unavailable, match="without a token, because no registered sidecar"):
            await HttpTopicsClient(unknown).topics(leader.url, Namespace("public/default"))
    finally:
        await known.close()
        await unknown.close()


async def test_a_sidecar_with_tls_shows_no_token_to_one_without(
    leader: RunningServer, start_server: StartServer, tmp_path: Path
) -> None:
    files = Files(tmp_path)
    path = tmp_path / "sidecar.jwt"
    path.write_text(named("sidecar"))
    guard = Guard(Rights(lookers=frozenset({"sidecar"})), Tokens(KEY, ("HS256",)))
    safe = await start_server(guard=guard, tls=TlsFiles(files.certificate, files.key))
    safe.lookup.leader = leader_at(f"https://localhost:{safe.port}")
    told = {
        "certificate_file": str(files.certificate),
        "key_file": str(files.key),
        "authorities_file": str(files.authorities),
    }
    url = f"https://localhost:{safe.port}"
    line = line_of(config(told, own_token_file=str(path)), leader.url, url)
    try:
        with pytest.raises(Unavailable, match="because this sidecar speaks TLS"):
            await line.assign(leader_at(leader.url), BUNDLE)
        assert await line.assign(leader_at(url), BUNDLE) == "b1:8080"
    finally:
        await line.close()


class OnlySidecars(ClusterKeyGuard):
    def __init__(self) -> None:
        super().__init__(lambda: KEY, OwnNames())
        self.asked: list[tuple[str, Role]] = []

    def caller(self, request: web.BaseRequest) -> Caller:
        found = super().caller(request)
        self.asked.append((found.name, found.role))
        return found


async def test_without_security_questions_are_signed_with_the_clusters_key(
    start_server: StartServer,
) -> None:
    guard = OnlySidecars()
    server = await start_server(FakeLookup(), guard=guard)
    server.lookup.leader = leader_at(server.url)
    signed, unsigned = line_of(config(), server.url), line_of(config(), server.url, key=None)
    try:
        for line in (signed, unsigned):
            assert await line.assign(leader_at(server.url), BUNDLE) == "b1:8080"
    finally:
        await signed.close()
        await unsigned.close()
    assert guard.asked == [("sidecar of b1:8080", Role.READ), ("", Role.ADMIN)]
