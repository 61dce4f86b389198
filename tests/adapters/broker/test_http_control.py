"""Whatever a broker answers, its control raises what the port promises, and says why."""

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from loadmanager.adapters.broker.contract import parsed_stats
from loadmanager.adapters.broker.http_control import HttpBrokerControl, control_url_of
from loadmanager.core.ids import BrokerId, parse_bundle, parse_topic, topic_from_parts
from loadmanager.core.load import BundleStats
from loadmanager.core.rates import Rates
from loadmanager.ports.broker import (
    BrokerRefused,
    BrokerStats,
    BrokerUnreachable,
    NotTheContract,
    StaleAgent,
)

BUNDLE = parse_bundle("t/n/0x00000000_0xffffffff")
OTHER = parse_bundle("t/n/0x80000000_0xffffffff")
RATES = {"msgRateIn": 1, "msgRateOut": 2.5, "msgThroughputIn": 3, "msgThroughputOut": 4}
STATS: dict[str, Any] = {"windowSeconds": 2.0, "bundles": {BUNDLE: RATES}}
LEASE: dict[str, Any] = {"incarnation": "i1", "clockSeconds": 5, "serving": {BUNDLE: 7}}
TOPIC = "persistent://t/n/orders"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Call = Callable[[HttpBrokerControl], Awaitable[Any]]


@asynccontextmanager
async def control_of(
    answer: Answer, timeout_s: float = 10.0, **options: Any
) -> AsyncIterator[HttpBrokerControl]:
    application = web.Application()
    application.router.add_route("*", "/{anything:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    control = HttpBrokerControl(f"http://{host}:{port}", timeout_s, **options)
    try:
        yield control
    finally:
        await control.close()
        await runner.cleanup()


@asynccontextmanager
async def control_of_bytes(
    sent: bytes, *, then_hang: bool = False, timeout_s: float = 10.0
) -> AsyncIterator[HttpBrokerControl]:
    """Yield the control of a broker that writes ``sent`` on each connection."""
    release = asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(sent)
            if then_hang:
                await release.wait()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    control = HttpBrokerControl(f"http://127.0.0.1:{port}", timeout_s)
    try:
        yield control
    finally:
        release.set()
        await control.close()
        server.close()
        await server.wait_closed()


def always(status: int, content: Any = b"", **headers: str) -> Answer:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers=headers)

    return answer


def renew(control: HttpBrokerControl) -> Awaitable[Any]:
    return control.renew_lease(agent_epoch=1, until_s=None, incarnation=None)


def stats(control: HttpBrokerControl) -> Awaitable[Any]:
    return control.stats()


def topics(control: HttpBrokerControl) -> Awaitable[Any]:
    return control.topics(BUNDLE)


def health(control: HttpBrokerControl) -> Awaitable[Any]:
    return control.health(0.2)


def load(control: HttpBrokerControl) -> Awaitable[Any]:
    return control.load(BUNDLE, agent_epoch=1, fencing_token=1)


def unload(control: HttpBrokerControl) -> Awaitable[Any]:
    return control.unload(BUNDLE, agent_epoch=1, fencing_token=2)


URLS: dict[Call, str] = {
    renew: r"PUT http://\S+/v1/lease: ",
    stats: r"GET http://\S+/v1/stats: ",
    topics: r"GET http://\S+/topics: ",
    health: r"GET http://\S+/health: ",
    load: r"PUT http://\S+: ",
    unload: r"DELETE http://\S+fencingToken=2: ",
}


async def test_numbers_counts_and_fields_of_a_later_contract_may_differ() -> None:
    rates = {"msgs_in_per_s": 1, "msgs_out_per_s": 2.5, "bytes_in_per_s": 3, "bytes_out_per_s": 4}
    async with control_of(always(200, STATS)) as control:
        assert await control.stats() == BrokerStats(
            window_s=2.0,
            bundles={BUNDLE: BundleStats(**rates)},  # type: ignore[arg-type] # by name
        )
    async with control_of(always(200, {**LEASE, "mood": "sunny"})) as control:
        state = await renew(control)
    assert (state.incarnation, state.clock_s, state.serving) == ("i1", 5.0, {BUNDLE: 7})
    told = {"topics": {TOPIC: RATES, "topic://t/n/a/b": {**RATES, "mood": "sunny"}}}
    async with control_of(always(200, told)) as control:
        assert await control.topics(BUNDLE) == dict.fromkeys(
            (parse_topic(TOPIC), topic_from_parts("topic", "t", "n", "a/b")), Rates(**rates)
        )


NO_JSON = r"content is .*; expected a JSON object \(Invalid JSON"
DIGITS = b'{"windowSeconds":2,"bundles":{"%s":{"topics":%s}}}' % (BUNDLE.encode(), b"9" * 5000)


@pytest.mark.parametrize(
    ("call", "content", "told"),
    [
        (renew, b"", r"content is b?''; expected a JSON object"),
        *((renew, body, NO_JSON) for body in (b"<html>", b"\xff\xfe\x00", b"[" * 100_000)),
        (renew, None, r"content is None; expected "),
        (renew, LEASE | {"clockSeconds": "5"}, r"clockSeconds is '5'; expected .*number"),
        (renew, LEASE | {"clockSeconds": True}, r"clockSeconds is True; expected .*number"),
        (renew, LEASE | {"clockSeconds": -1}, r"clockSeconds is -1.*; expected .*greater"),
        (renew, LEASE | {"clockSeconds": float("nan")}, r"clockSeconds is nan; .*finite"),
        (renew, LEASE | {"clock_seconds": 5, "clockSeconds": None}, r"clockSeconds is None"),
        (renew, b'{"incarnation":"i","clockSeconds":1e999,"serving":{}}', r"clockSeconds is inf"),
        (renew, LEASE | {"incarnation": ""}, r"incarnation is ''; expected .*at least 1"),
        (renew, LEASE | {"incarnation": "x" * 10_000}, r"incarnation is 'xxx.*\.\.\.; .*most"),
        (renew, LEASE | {"serving": {BUNDLE: 1.5}}, r"serving.* is 1\.5; expected .*integer"),
        (renew, LEASE | {"serving": {BUNDLE: -1}}, r"serving.* is -1; expected .*greater"),
        (renew, LEASE | {"serving": {BUNDLE: 2**63}}, r"serving.*; expected .*less"),
        (renew, LEASE | {"serving": {"t/n": 1}}, r"serving\.t/n.* is 't/n'; .*bundle 't/n'"),
        (renew, LEASE | {"serving": [BUNDLE]}, r"serving is \[.*; expected "),
        (renew, {"incarnation": "i", "clockSeconds": 1}, r"serving is missing; expected a value"),
        (stats, STATS | {"windowSeconds": 0}, r"windowSeconds is 0.*; expected .*greater"),
        (stats, STATS | {"windowSeconds": 1e-300}, r"windowSeconds is 1e-300; .*greater"),
        (stats, STATS | {"windowSeconds": 1e9}, r"windowSeconds is 1000000000.0; .*less"),
        (stats, STATS | {"processId": 2**31}, r"processId is 2147483648; expected .*less"),
        (stats, STATS | {"processId": 0}, r"processId is 0"),
        (stats, STATS | {"version": 3}, r"version is 3"),
        (stats, DIGITS, r""),
        (stats, STATS | {"bundles": {BUNDLE: RATES | {"msgRateIn": "1"}}}, r"msgRateIn is '1'"),
        (stats, STATS | {"bundles": {BUNDLE: RATES | {"topics": True}}}, r"topics is True"),
        (stats, STATS | {"bundles": {BUNDLE: {}}}, r"msgRateIn is missing"),
        (stats, STATS | {"bundles": {"nonsense": RATES}}, r"bundles\.nonsense"),
        (topics, {}, r"topics is missing"),
        (topics, {"topics": []}, r"topics is \[\]"),
        (topics, {"topics": {TOPIC: {}}}, r"msgRateIn is missing"),
        (topics, {"topics": {TOPIC: RATES | {"msgRateOut": -1}}}, r"msgRateOut is -1"),
        (topics, {"topics": {TOPIC: RATES | {"msgThroughputIn": "3"}}}, r"ThroughputIn is '3'"),
        (topics, {"topics": {"orders": RATES}}, r"topics\.'orders'; expected a topic's full name"),
        (topics, {"topics": {"http://t/n/x": RATES}}, r"topics\.'http://t/n/x'; .*persistent"),
        (topics, {"topics": {"persistent://t/../x": RATES}}, r"expected .*neither of them"),
        (topics, {"topics": {"persistent://t/m/x": RATES}}, r"x'; expected a topic of t/n/0x"),
        (topics, {"topics": {"x" * 100_000: RATES}}, r"topics\.'xxx.*\.\.\.; expected"),
        (topics, {"topics": {"x" * 100_000: 1}}, r"topics\.xxx.* is 1; expected"),
        (topics, {"topics": {f"{TOPIC}{n}": RATES for n in range(5_001)}}, r"at most 5000"),
    ],
)
async def test_an_answer_that_is_none_is_refused_with_the_field_that_is_wrong(
    call: Call, content: Any, told: str
) -> None:
    async with control_of(always(200, content)) as control:
        with pytest.raises(BrokerRefused, match=URLS[call] + ".*" + told) as refused:
            await call(control)
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        *(("msgRateIn", -0.5), ("msgRateIn", 4e307), ("msgRateOut", 1.1e15)),
        *(("msgThroughputIn", float("nan")), ("msgThroughputOut", float("inf"))),
        *(("msgThroughputOut", 10**400), ("topics", 1.0), ("producerCount", 2**62)),
        *(("consumerCount", 2**40 + 1), ("cacheSize", 2**50 + 1), ("cacheSize", -1)),
    ],
)
async def test_a_figure_outside_its_bound_is_left_out_and_named(figure: str, value: float) -> None:
    content = {**STATS, "bundles": {BUNDLE: {**RATES, figure: value}, OTHER: RATES}}
    async with control_of(always(200, content)) as control:
        found = await control.stats()
    within = {**STATS, "bundles": {BUNDLE: {**RATES, figure: 0}, OTHER: RATES}}
    assert found.bundles == parsed_stats(json.dumps(within).encode(), "x").bundles
    (told,) = found.left_out
    assert re.match(rf"GET http://.*/stats: bundles\.{BUNDLE}\.{figure} is .*; expected ", told)
    assert len(told) < 400


PACKED = gzip.compress(json.dumps(STATS).encode())


@pytest.mark.parametrize(
    ("call", "answer", "told"),
    [
        (renew, always(409, b"Conflict"), r"status 409: .*Invalid JSON"),
        *(
            (call, always(status, {"reason": "why"}, Location="/x"), rf"status {status}: why; exp")
            for call in (load, unload)
            for status in (200, 202, 302, 400, 404, 412, 500, 503)
        ),
        *(
            (health, always(status, {"reason": "the disk is full"}), f"status {status}")
            for status in (204, 404, 429, 500, 503)
        ),
        (stats, always(500, b"<h1>Oops</h1>"), r"status 500: .*expected status 200, or a reason"),
        (stats, always(400, {"reason": "x" * 100_000}), "status 400: xxx"),
        (stats, always(200, b" " * 10_000_000), r"longer than expected, at most 8388608"),
        (stats, always(200, PACKED, **{"Content-Encoding": "gzip"}), "Invalid JSON"),
    ],
)
async def test_what_was_not_promised_is_a_refusal(call: Call, answer: Answer, told: str) -> None:
    async with control_of(answer) as control:
        with pytest.raises(BrokerRefused, match=f"{URLS[call]}.*{told}") as refused:
            await call(control)
    assert not isinstance(refused.value, StaleAgent)
    assert len(str(refused.value)) < 700


async def test_only_409_with_a_reason_tells_the_agent_to_stop() -> None:
    async with control_of(always(409, {"reason": "agent epoch 1 is older than 2"})) as control:
        with pytest.raises(StaleAgent, match=r"PUT .*/lease: status 409: agent epoch 1 is older"):
            await renew(control)


async def test_after_an_oversized_answer_the_next_command_works() -> None:
    answers = iter([always(200, b" " * 2000), always(200, STATS)])

    async def answer(request: web.Request) -> web.StreamResponse:
        return await next(answers)(request)

    async with control_of(answer, max_answer_bytes=1000) as control:
        with pytest.raises(BrokerRefused):
            await control.stats()
        assert (await control.stats()).window_s == 2.0


OK = b"HTTP/1.1 200 OK\r\n"
HALF = OK + b"Content-Length: 500\r\n\r\n{"


@pytest.mark.parametrize(
    ("sent", "hangs", "call", "error", "told"),
    [
        (b"", True, stats, BrokerUnreachable, r"no whole answer within 0\.3 s"),
        (HALF, True, stats, BrokerUnreachable, "no whole answer within"),
        (OK, True, health, BrokerUnreachable, r"no whole answer within 0\.2 s"),
        (b"", False, stats, BrokerUnreachable, r"\w+: "),
        (OK, False, stats, BrokerUnreachable, r"\w+: "),
        (HALF, False, stats, BrokerUnreachable, r"\w+: "),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", False, stats, BrokerUnreachable, r"\w+"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", False, stats, BrokerRefused, "the answer is no HTTP"),
        (b"\x00\x01\x02\x03\r\n\r\n", False, stats, BrokerRefused, "the answer is no HTTP"),
        (b"HTTP/1.1 banana OK\r\n\r\n", False, stats, BrokerRefused, "the answer is no HTTP"),
        (OK + b"Content-Length: many\r\n\r\n", False, stats, BrokerRefused, ".*no HTTP"),
        (OK + b"X: %b\r\n\r\n" % (b"x" * 100_000), False, stats, BrokerRefused, ".*no HTTP"),
    ],
)
async def test_bytes_that_are_no_whole_answer(
    sent: bytes, *, hangs: bool, call: Call, error: type[Exception], told: str
) -> None:
    async with control_of_bytes(sent, then_hang=hangs, timeout_s=0.3 if hangs else 10) as control:
        with pytest.raises(error, match=URLS[call] + told):
            await call(control)


def page(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    "answer",
    [
        page("404 Not Found", "text/html", b"<html><body>It works!</body></html>"),
        page("404 Not Found", "application/json", b'{"reason":"HTTP 404 Not Found"}'),
        page("200 OK", "text/html", b"<html><body>It works!</body></html>"),
        page("404 Not Found", "text/plain", b""),
        page("200 OK", "application/json", b'{"hello": 1}'),
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ],
    ids=["no page", "Pulsar", "a page", "nothing in it", "JSON of something else", "no HTTP"],
)
async def test_another_server_is_named_with_the_page_to_read(answer: bytes) -> None:
    async with control_of_bytes(answer) as control:
        with pytest.raises(NotTheContract) as told:
            await control.stats()
        with pytest.raises(NotTheContract):
            await renew(control)
        assert f"GET {control.root}/stats" in str(told.value)
    assert "docs/broker-contract.md" in str(told.value)
    assert "[broker] control_url" in str(told.value)


async def test_loopback_is_where_the_broker_is_asked_if_it_answers_there() -> None:
    async with control_of_bytes(b"") as control:
        port = int(control.root.split(":")[2].partition("/")[0])
        found = await control_url_of(BrokerId(f"b1:{port}"), "")
    assert found == f"http://127.0.0.1:{port}"
    with capture_logs() as logged:
        assert await control_url_of(BrokerId(f"b1:{port}"), "") == f"http://b1:{port}"
    assert f"nothing answers at http://127.0.0.1:{port}: " in logged[0]["why"]
    given = await control_url_of(BrokerId(f"b1:{port}"), "http://10.0.0.7:80")
    assert given == "http://10.0.0.7:80"
    control = HttpBrokerControl(f"http://127.0.0.1:{port}", timeout_s=30.0)
    with pytest.raises(BrokerUnreachable, match=rf"GET http://127.0.0.1:{port}/.*Connect"):
        await control.stats()
    await control.close()
    with pytest.raises(BrokerUnreachable, match="closed"):
        await control.stats()


async def test_unloading_may_be_given_more_time_than_other_commands() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.method != "DELETE":
            await asyncio.sleep(30)
        return web.Response(status=204)

    async with control_of(answer, timeout_s=0.05, unload_timeout_s=10.0) as control:
        with pytest.raises(BrokerUnreachable):
            await load(control)
        await unload(control)


async def test_one_connection_serves_many_commands_below_a_path_before_the_contracts_own() -> None:
    seen = set()

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        seen.add((request.path, request.transport.get_extra_info("peername")))
        return web.json_response(STATS)

    async with control_of(answer) as control:
        inner = HttpBrokerControl(control.root.replace("/loadmanager-broker/v1", "/deep/"))
        for _ in range(5):
            await inner.stats()
        await inner.close()
    ((path, _),) = seen
    assert path == "/deep/loadmanager-broker/v1/stats"


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        *(
            (url, {}, "expected http://host:port")
            for url in ("", "127.0.0.1:8080", "ftp://x", "http://x?a=b", "http://x#y")
        ),
        *(
            ("http://127.0.0.1:1", {name: value}, "above zero")
            for name, value in (("timeout_s", 0), ("unload_timeout_s", -1), ("max_answer_bytes", 0))
        ),
    ],
)
def test_what_cannot_work_is_refused_at_once(url: str, options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        HttpBrokerControl(url, **options)
