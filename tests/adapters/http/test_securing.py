"""What a sidecar proves itself with: looked at when it starts, and shown to sidecars alone."""

import asyncio
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from structlog.testing import capture_logs
from tls_files import Files

from loadmanager.adapters.http.assign_client import HttpAssignClient
from loadmanager.adapters.http.routes import Role
from loadmanager.adapters.http.security.guard import (
    Caller,
    ClusterKeyGuard,
    Guard,
    KeyUnusable,
    OwnNames,
    Rights,
    Tokens,
)
from loadmanager.adapters.http.security.tls import ClientTls, TlsFiles, TlsFilesUnusable
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


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), (b"\xff", "can't decode")])
def test_an_unreadable_token_is_told_first(content: bytes | None, why: str, tmp_path: Path) -> None:
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
    guard = Guard(Rights(lookup_roles=frozenset({"sidecar"})), Tokens(KEY, ("HS256",)))
    server = await start_server(guard=guard)
    server.lookup.leader = leader_at(server.url)
    return server


async def test_tokens_go_to_known_sidecars_alone(leader: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "sidecar.jwt"
    path.write_text(named("sidecar"))
    made = config(own_token_file=str(path))
    known, unknown = line_of(made, leader.url), line_of(made, leader.url + "0")
    try:
        assert await known.assign(leader_at(leader.url + "/"), BUNDLE) == "b1:8080"
        with pytest.raises(Unavailable, match="without a token, because no registered sidecar"):
            await unknown.assign(leader_at(leader.url), BUNDLE)
        with pytest.raises(Unavailable, match="without a token, because no registered sidecar"):
            await unknown.topics(leader.url, Namespace("public/default"))
    finally:
        await known.close()
        await unknown.close()


async def test_a_sidecar_with_tls_shows_no_token_to_one_without(
    leader: RunningServer, start_server: StartServer, tmp_path: Path
) -> None:
    files = Files(tmp_path)
    path = tmp_path / "sidecar.jwt"
    path.write_text(named("sidecar"))
    guard = Guard(Rights(lookup_roles=frozenset({"sidecar"})), Tokens(KEY, ("HS256",)))
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


async def test_without_security_the_clusters_key_signs(start_server: StartServer) -> None:
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


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_new_certificate_is_taken_in_by_the_same_context(files: Files) -> None:
    tls = TlsFiles(files.certificate, files.key)
    before = tls.context
    files.issue()
    _age(files.certificate)
    assert tls.refresh()
    assert tls.context is before
    assert not tls.refresh()


def test_a_key_that_does_not_fit_leaves_the_former_pair(files: Files, tmp_path: Path) -> None:
    tls = TlsFiles(files.certificate, files.key)
    (tmp_path / "other").mkdir()
    files.key.write_bytes(Files(tmp_path / "other").key.read_bytes())
    _age(files.key)
    assert not tls.refresh()


async def _names_shown(server: ssl.SSLContext, client: ClientTls) -> str:
    shown: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def met(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        subject = writer.get_extra_info("peercert")["subject"]
        shown.set_result(next(v for part in subject for k, v in part if k == "commonName"))
        writer.close()

    listening = await asyncio.start_server(met, "127.0.0.1", 0, ssl=server)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client.context, server_hostname="localhost"
        )
        await reader.read()
        writer.close()
        return await shown


async def test_a_client_shows_its_new_certificate_without_a_restart(files: Files) -> None:
    tls = TlsFiles(files.certificate, files.key, files.authorities, "required")
    certificate, key = files.client("sidecar")
    client = ClientTls(files.authorities, certificate, key)
    assert await _names_shown(tls.context, client) == "sidecar"
    renewed = [path.read_bytes() for path in files.client("renewed")]
    key.write_bytes(renewed[1])
    _age(key)
    with capture_logs() as logs:
        client.refresh()
    assert [one["event"] for one in logs] == ["tls.files.refused"]
    assert await _names_shown(tls.context, client) == "sidecar"
    certificate.write_bytes(renewed[0])
    _age(certificate)
    client.refresh()
    assert await _names_shown(tls.context, client) == "renewed"


def test_what_cannot_be_used_is_named(files: Files, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(TlsFilesUnusable, match=f"{missing} and {files.key}: No such file"):
        TlsFiles(missing, files.key)
    with pytest.raises(TlsFilesUnusable, match=f"{files.key}.*expected a certificate and its key"):
        TlsFiles(files.authorities, files.key)
    with pytest.raises(TlsFilesUnusable, match=f"{missing}.*expected certificates in PEM"):
        ClientTls(missing)
    with pytest.raises(TlsFilesUnusable, match=f"{files.key}.*expected certificates in PEM"):
        TlsFiles(files.certificate, files.key, files.key, "required")


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(files: Files) -> None:
    key = load_pem_private_key(files.key.read_bytes(), None)
    locked = BestAvailableEncryption(b"passphrase")
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, locked))
    with pytest.raises(TlsFilesUnusable, match="without a passphrase"):
        TlsFiles(files.certificate, files.key)


def test_old_versions_of_tls_are_not_spoken(files: Files) -> None:
    for context in (TlsFiles(files.certificate, files.key).context, ClientTls(None).context):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def _age(path: Path) -> None:
    """Let the file look changed, however coarse the clock of the file system is."""
    stat = path.stat()
    os.utime(path, (stat.st_atime, stat.st_mtime + 10))
