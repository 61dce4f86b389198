import asyncio

import pytest

from loadmanager.adapters.http import bodies
from tests.adapters.http.conftest import RunningServer


async def test_a_body_that_does_not_come_is_not_waited_for_for_ever(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies.body_bytes, "__defaults__", (0.2, 60.0))
    raw = (
        b"PUT /admin/v2/namespaces/public/slow HTTP/1.1\r\nHost: x\r\n"
        b"Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
    )
    async with asyncio.timeout(60):
        (reply,) = await server.send(raw)
    assert (reply.status, reply.json()) == (408, {"reason": "the body did not come within 0.2 s"})


async def test_a_body_that_stops_coming_is_refused_before_its_whole_time_is_over(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies.body_bytes, "__defaults__", (600.0, 0.2))
    raw = (
        b"PUT /admin/v2/namespaces/public/slow HTTP/1.1\r\nHost: x\r\n"
        b"Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
    )
    async with asyncio.timeout(60):
        (reply,) = await server.send(raw)
    assert (reply.status, reply.json()) == (408, {"reason": "nothing of the body came for 0.2 s"})


async def test_a_body_that_comes_byte_by_byte_makes_progress(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies.body_bytes, "__defaults__", (600.0, 2.0))
    body = b"not JSON, in small pieces"
    head = (
        b"PUT /admin/v2/namespaces/public/slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    async with asyncio.timeout(60):
        writer.write(head % len(body))
        for number in range(len(body)):
            writer.write(body[number : number + 1])
            await asyncio.sleep(0.1)
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
