"""What the sidecar says of a server that is no broker of the contract, or none at all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from loadmanager.adapters.broker.http_control import HttpBrokerControl, control_url_of
from loadmanager.core.ids import BrokerId
from loadmanager.ports.broker import BrokerUnreachable, NotTheContract

PULSAR = b'{"reason":"HTTP 404 Not Found"}'
PAGE = b"<html><body>It works!</body></html>"


def http(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@asynccontextmanager
async def server(answer: bytes) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await listening.wait_closed()


ANSWERS = {
    "a page that is not there": http("404 Not Found", "text/html", PAGE),
    "Pulsar": http("404 Not Found", "application/json", PULSAR),
    "a page": http("200 OK", "text/html", PAGE),
    "nothing in it": http("404 Not Found", "text/plain", b""),
    "JSON of something else": http("200 OK", "application/json", b'{"hello": 1}'),
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
async def test_what_answered_is_named_with_the_page_to_read(answer: bytes) -> None:
    async with server(answer) as port:
        control = HttpBrokerControl(f"http://127.0.0.1:{port}")
        with pytest.raises(NotTheContract) as told:
            await control.stats()
        with pytest.raises(NotTheContract):
            await control.renew_lease(agent_epoch=1, until_s=None, incarnation=None)
        await control.close()
    assert f"GET http://127.0.0.1:{port}/loadmanager-broker/v1/stats" in str(told.value)
    assert "docs/broker-contract.md" in str(told.value)
    assert "[broker] control_url" in str(told.value)


async def test_nothing_that_answers_is_unreachable() -> None:
    async with server(b"") as port:
        pass
    control = HttpBrokerControl(f"http://127.0.0.1:{port}")
    with pytest.raises(BrokerUnreachable, match=f"127.0.0.1:{port}"):
        await control.stats()
    await control.close()


async def test_loopback_is_where_the_broker_is_asked_if_it_answers_there() -> None:
    async with server(b"") as port:
        found = await control_url_of(BrokerId(f"b1:{port}"), "")
    assert found.url == f"http://127.0.0.1:{port}"
    found = await control_url_of(BrokerId(f"b1:{port}"), "")
    assert found.url == f"http://b1:{port}"
    assert f"nothing answers at http://127.0.0.1:{port}: " in found.why
    given = await control_url_of(BrokerId(f"b1:{port}"), "http://10.0.0.7:80")
    assert given.url == "http://10.0.0.7:80"
