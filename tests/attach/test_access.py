"""What lets `loadmanager attach` in: tokens of a file and of an OAuth2 issuer."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from fake_pulsar import FakePulsar

from loadmanager.pulsar.client import (
    Access,
    ClientCredentials,
    PulsarAdmin,
    RequestFailed,
    RightMissing,
)
from tests.attach.conftest import attach

SECRET = "s3cret-of-the-client"  # noqa: S105 - of the fake issuer
VERSION = "/admin/v2/brokers/version"


@dataclass
class Issuer:
    url: str = ""
    forms: list[dict[str, str]] = field(default_factory=list)
    answer: Any = None
    status: int = 200
    discovered: int = 0

    async def discover(self, _: web.Request) -> web.Response:
        self.discovered += 1
        return web.json_response({"token_endpoint": f"{self.url}/oauth/token"})

    async def issue(self, request: web.Request) -> web.Response:
        self.forms.append(dict((await request.post()).items()))  # type: ignore[arg-type]  # all text
        number = len(self.forms)
        usual = {"access_token": f"token-{number}", "expires_in": 3600, "token_type": "Bearer"}
        answer = usual if self.answer is None else self.answer
        return web.json_response(answer, status=self.status)


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    made = Issuer()
    app = web.Application()
    app.router.add_get("/tenant/.well-known/openid-configuration", made.discover)
    app.router.add_post("/tenant/oauth/token", made.issue)
    server = TestServer(app)
    await server.start_server()
    made.url = f"http://127.0.0.1:{server.port}/tenant"
    yield made
    await server.close()


def key_file(folder: Path, **fields: str) -> Path:
    file = folder / "credentials.json"
    key = {"type": "client_credentials", "client_id": "us", "client_secret": SECRET, **fields}
    file.write_text(json.dumps(key), encoding="utf-8")
    return file


@pytest.fixture
async def admin(issuer: Issuer, tmp_path: Path) -> AsyncIterator[PulsarAdmin]:
    file = key_file(tmp_path, issuer_url=f"{issuer.url}/")
    credentials = ClientCredentials(key_file=file, audience="urn:pulsar", scope="a b")
    made = PulsarAdmin(Access(oauth2=credentials))
    yield made
    await made.close()


async def test_one_token_of_the_issuer_serves_all_requests_until_it_expires(
    pulsar: FakePulsar, issuer: Issuer, admin: PulsarAdmin
) -> None:
    for _ in range(3):
        await admin.text(f"{pulsar.url}{VERSION}")
    assert issuer.forms == [
        {
            "grant_type": "client_credentials",
            "client_id": "us",
            "client_secret": SECRET,
            "audience": "urn:pulsar",
            "scope": "a b",
        }
    ]
    assert pulsar.brokers[0].authorizations == {"Bearer token-1"}
    assert SECRET not in repr(admin)
    assert "token-1" not in repr(admin)
    # One that lives for a nanosecond is renewed for each request.
    issuer.answer = {"access_token": "brief", "expires_in": 1e-9}
    admin.access.oauth2.refused("token-1")  # type: ignore[union-attr]  # the fixture sets it
    for _ in range(2):
        await admin.text(f"{pulsar.url}{VERSION}")
    assert len(issuer.forms) == 3


async def test_a_token_serves_until_it_expires_while_the_issuer_does_not_answer(
    pulsar: FakePulsar, issuer: Issuer, admin: PulsarAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr("loadmanager.pulsar.client.monotonic", lambda: now_s[0])
    await admin.text(f"{pulsar.url}{VERSION}")
    issuer.status = 503
    now_s[0] += 3600 - 30
    for _ in range(3):
        await admin.text(f"{pulsar.url}{VERSION}")
    assert len(issuer.forms) == 2  # It is not asked again for each request.
    now_s[0] += 31
    with pytest.raises(RequestFailed, match="answered 503"):
        await admin.text(f"{pulsar.url}{VERSION}")
    issuer.status = 200
    await admin.text(f"{pulsar.url}{VERSION}")
    assert pulsar.brokers[0].authorizations == {"Bearer token-1", "Bearer token-4"}


@pytest.mark.parametrize(("accepted", "tokens"), [("Bearer token-2", 2), ("none", 2)])
async def test_a_token_that_is_refused_is_renewed_once(
    pulsar: FakePulsar, issuer: Issuer, admin: PulsarAdmin, accepted: str, tokens: int
) -> None:
    async def guard(request: web.Request) -> web.Response:
        right = request.headers.get("Authorization") == accepted
        return web.Response(text="4.0.7", status=200 if right else 401)

    pulsar.brokers[0].instead[VERSION] = guard
    if accepted == "none":
        with pytest.raises(RightMissing, match="answered 401"):
            await admin.text(f"{pulsar.url}{VERSION}")
    else:
        assert await admin.text(f"{pulsar.url}{VERSION}") == "4.0.7"
    assert len(issuer.forms) == tokens


@pytest.mark.parametrize(
    ("key", "status", "answer", "error", "expected"),
    [
        ({"issuer_url": "http://issuer.example"}, 200, None, RightMissing, "expected https://"),
        ({"issuer_url": "http://[::1"}, 200, None, RightMissing, "expected https://"),
        ({"issuer_url": ""}, 200, None, RightMissing, "expected https://"),
        ({"client_secret": ""}, 200, None, RightMissing, "client_id, client_secret and issuer_url"),
        ({}, 401, {"error": f"no {SECRET}"}, RightMissing, "answered 401; expected the client"),
        ({}, 503, {}, RequestFailed, "answered 503"),
        ({}, 200, [], RequestFailed, "expected that of an OAuth2 issuer"),
        ({}, 200, {"access_token": "a\nb"}, RequestFailed, "no access_token"),
        ({"issuer_url": "http://127.0.0.1:9"}, 200, None, RequestFailed, "cannot connect"),
    ],
)
async def test_what_gives_no_token_is_named_without_the_secret(
    pulsar: FakePulsar,
    issuer: Issuer,
    admin: PulsarAdmin,
    tmp_path: Path,
    *,
    key: dict[str, str],
    status: int,
    answer: object,
    error: type[Exception],
    expected: str,
) -> None:
    key_file(tmp_path, **{"issuer_url": issuer.url, **key})
    issuer.status, issuer.answer = status, answer
    with pytest.raises(error, match=expected) as refused:
        await admin.text(f"{pulsar.url}{VERSION}")
    assert SECRET not in str(refused.value)
    assert pulsar.brokers[0].asked == []


@pytest.mark.parametrize("content", [None, b"", b"a b\xff", b"two\nlines"])
async def test_a_file_without_a_token_is_named_and_sends_nothing(
    pulsar: FakePulsar, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    admin = PulsarAdmin(Access(token_file=file))
    with pytest.raises(RightMissing, match="expected a file with a token"):
        await admin.text(f"{pulsar.url}{VERSION}")
    await admin.close()
    assert pulsar.brokers[0].asked == []


async def test_the_issuer_is_asked(pulsar: FakePulsar, issuer: Issuer, tmp_path: Path) -> None:
    file = str(key_file(tmp_path, issuer_url="http://127.0.0.1:9"))
    asked = ("--once", "--oauth2-key-file", file, "--oauth2-issuer-url", issuer.url)
    found = await asyncio.to_thread(attach, pulsar, *asked)
    assert found.exit_code == 0, found.output
    assert [one.authorizations for one in pulsar.brokers] == [{"Bearer token-1"}] * 3
    assert SECRET not in found.output
