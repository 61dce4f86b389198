import asyncio

import pytest

from loadmanager.adapters.http import bodies
from tests.adapters.http.conftest import OpenDoor


async def test_a_body_that_does_not_come_is_not_waited_for_for_ever(
    door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies.body_bytes, "__defaults__", (0.2,))
    raw = (
        b"PUT /admin/v2/namespaces/public/slow HTTP/1.1\r\nHost: x\r\n"
        b"Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
    )
    async with asyncio.timeout(60):
        (reply,) = await door.send(raw)
    assert (reply.status, reply.json()) == (408, {"reason": "the body did not come within 0.2 s"})
