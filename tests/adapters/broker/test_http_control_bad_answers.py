"""Whatever a broker answers, its control raises what the port promises, and says why."""

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from loadmanager.adapters.broker.contract import parsed_stats
from loadmanager.adapters.broker.http_control import HttpBrokerControl
from loadmanager.core.ids import parse_bundle, parse_topic, topic_from_parts
from loadmanager.core.load import BundleStats
from loadmanager.core.rates import Rates
from loadmanager.ports.broker import BrokerRefused, BrokerStats, BrokerUnreachable, StaleAgent

BUNDLE = parse_bundle("t/n/0x00000000_0xffffffff")
RATES = {"msgRateIn": 1, "msgRateOut": 2.5, "msgThroughputIn": 3, "msgThroughputOut": 4}
STATS: dict[str, Any] = {"windowSeconds": 2.0, "bundles": {BUNDLE: RATES}}
LEASE: dict[str, Any] = {"incarnation": "i1", "clockSeconds": 5, "serving": {BUNDLE: 7}}

Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def control_of(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
    timeout_s: float = 10.0,
    **options: Any,
) -> AsyncIterator[HttpBrokerControl]:
    """Yield the control of a broker that answers everything with ``answer``."""
    application = web.Application()
    application.router.add_route("*", "/{anything:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
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
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        if then_hang:
            await release.wait()
        writer.close()
        await writer.wait_closed()

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


def always(
    status: int, content: bytes | dict[str, Any] = b"", **headers: str
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    body = json.dumps(content).encode() if isinstance(content, dict) else content

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers=headers)

    return answer


async def test_numbers_without_a_point_are_fine_and_counts_may_be_missing() -> None:
    async with control_of(always(200, STATS)) as control:
        assert await control.stats() == BrokerStats(
            window_s=2.0,
            bundles={
                BUNDLE: BundleStats(
                    msgs_in_per_s=1, msgs_out_per_s=2.5, bytes_in_per_s=3, bytes_out_per_s=4
                )
            },
        )


async def test_fields_of_a_later_contract_are_ignored() -> None:
    async with control_of(always(200, {**LEASE, "mood": "sunny"})) as control:
        state = await control.renew_lease(agent_epoch=1, until_s=6.0, incarnation="i1")
    assert (state.incarnation, state.clock_s, state.serving) == ("i1", 5.0, {BUNDLE: 7})


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", r"content is b?''; expected a JSON object"),
        (b"<html>hello</html>", r"content is .*; expected a JSON object \(Invalid JSON"),
        (b"\xff\xfe\x00", r"content is .*; expected a JSON object \(Invalid JSON"),
        (b"[" * 100_000, r"content is .*; expected a JSON object \(Invalid JSON"),
        (b"null", r"content is None; expected "),
        ({**LEASE, "clockSeconds": "5"}, r"clockSeconds is '5'; expected .*number"),
        ({**LEASE, "clockSeconds": True}, r"clockSeconds is True; expected .*number"),
        ({**LEASE, "clockSeconds": -1}, r"clockSeconds is -1.*; expected .*greater"),
        ({**LEASE, "clockSeconds": float("nan")}, r"clockSeconds is nan; expected .*finite"),
        (b'{"incarnation":"i","clockSeconds":1e999,"serving":{}}', r"clockSeconds is inf"),
        ({**LEASE, "incarnation": ""}, r"incarnation is ''; expected .*at least 1"),
        ({**LEASE, "incarnation": "x" * 10_000}, r"incarnation is 'xxx.*\.\.\.; expected .*most"),
        ({**LEASE, "serving": {BUNDLE: 1.5}}, r"serving.* is 1\.5; expected .*integer"),
        ({**LEASE, "serving": {BUNDLE: -1}}, r"serving.* is -1; expected .*greater"),
        ({**LEASE, "serving": {BUNDLE: 2**63}}, r"serving.*; expected .*less"),
        ({**LEASE, "serving": {"t/n": 1}}, r"serving\.t/n.* is 't/n'; expected .*bundle 't/n'"),
        ({**LEASE, "serving": [BUNDLE]}, r"serving is \[.*; expected "),
        ({"incarnation": "i", "clockSeconds": 1}, r"serving is missing; expected a value"),
        ({**LEASE, "clock_seconds": 5, "clockSeconds": None}, r"clockSeconds is None"),
    ],
)
async def test_an_answer_that_is_none_is_refused_with_the_field_that_is_wrong(
    content: bytes | dict[str, Any], told: str
) -> None:
    async with control_of(always(200, content)) as control:
        with pytest.raises(BrokerRefused, match=r"PUT http://.*/v1/lease: " + told) as refused:
            await control.renew_lease(agent_epoch=1, until_s=None, incarnation=None)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({**STATS, "windowSeconds": 0}, r"windowSeconds is 0.*; expected .*greater"),
        ({**STATS, "windowSeconds": 1e-300}, r"windowSeconds is 1e-300; expected .*greater"),
        ({**STATS, "windowSeconds": 1e9}, r"windowSeconds is 1000000000.0; expected .*less"),
        ({**STATS, "processId": 2**31}, r"processId is 2147483648; expected .*less"),
        (
            b'{"windowSeconds":2,"bundles":{"t/n/0x00000000_0x80000000":'
            b'{"msgRateIn":1,"msgRateOut":1,"msgThroughputIn":1,"msgThroughputOut":1,"topics":'
            + b"9" * 5000
            + b"}}}",
            r"",
        ),
        ({**STATS, "bundles": {BUNDLE: {**RATES, "msgRateIn": "1"}}}, r"msgRateIn is '1'"),
        ({**STATS, "bundles": {BUNDLE: {**RATES, "topics": True}}}, r"topics is True"),
        ({**STATS, "bundles": {BUNDLE: {}}}, r"msgRateIn is missing"),
        ({**STATS, "bundles": {"nonsense": RATES}}, r"bundles\.nonsense"),
        ({**STATS, "processId": 0}, r"processId is 0"),
        ({**STATS, "version": 3}, r"version is 3"),
    ],
)
async def test_stats_that_are_none_are_refused(content: bytes | dict[str, Any], told: str) -> None:
    async with control_of(always(200, content)) as control:
        with pytest.raises(BrokerRefused, match=r"GET http://.*/v1/stats: .*" + told):
            await control.stats()


OTHER = parse_bundle("t/n/0x80000000_0xffffffff")


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("msgRateIn", -0.5),
        ("msgRateIn", 4e307),
        ("msgRateOut", 1.1e15),
        ("msgThroughputIn", float("nan")),
        ("msgThroughputOut", float("inf")),
        ("msgThroughputOut", 10**400),
        ("topics", 1.0),
        ("producerCount", 2**62),
        ("consumerCount", 2**40 + 1),
        ("cacheSize", 2**50 + 1),
        ("cacheSize", -1),
    ],
)
async def test_a_figure_of_a_bundle_outside_its_bound_is_left_out_and_named(
    figure: str, value: float
) -> None:
    content = {**STATS, "bundles": {BUNDLE: {**RATES, figure: value}, OTHER: RATES}}
    async with control_of(always(200, content)) as control:
        stats = await control.stats()
    within = {**STATS, "bundles": {BUNDLE: {**RATES, figure: 0}, OTHER: RATES}}
    assert stats.bundles == parsed_stats(json.dumps(within).encode(), "x").bundles
    (told,) = stats.left_out
    assert re.match(rf"GET http://.*/stats: bundles\.{BUNDLE}\.{figure} is .*; expected ", told)
    assert len(told) < 400


TOPIC_NAME = "persistent://t/n/orders"


async def test_topics_are_read_by_their_full_names() -> None:
    told = {"topics": {TOPIC_NAME: RATES, "topic://t/n/a/b": {**RATES, "mood": "sunny"}}}
    rates = Rates(msgs_in_per_s=1, msgs_out_per_s=2.5, bytes_in_per_s=3, bytes_out_per_s=4)
    async with control_of(always(200, told)) as control:
        assert await control.topics(BUNDLE) == {
            parse_topic(TOPIC_NAME): rates,
            topic_from_parts("topic", "t", "n", "a/b"): rates,
        }


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({}, r"topics is missing"),
        ({"topics": []}, r"topics is \[\]"),
        ({"topics": {TOPIC_NAME: {}}}, r"msgRateIn is missing"),
        ({"topics": {TOPIC_NAME: {**RATES, "msgRateOut": -1}}}, r"msgRateOut is -1"),
        ({"topics": {TOPIC_NAME: {**RATES, "msgThroughputIn": "3"}}}, r"msgThroughputIn is '3'"),
        ({"topics": {"orders": RATES}}, r"topics\.'orders'; expected a topic's full name"),
        ({"topics": {"http://t/n/x": RATES}}, r"topics\.'http://t/n/x'; expected .*persistent"),
        ({"topics": {"persistent://t/../x": RATES}}, r"expected .*neither of them"),
        ({"topics": {"persistent://t/m/x": RATES}}, r"x'; expected a topic of t/n/0x"),
        ({"topics": {"x" * 100_000: RATES}}, r"topics\.'xxx.*\.\.\.; expected"),
        ({"topics": {"x" * 100_000: 1}}, r"topics\.xxx.* is 1; expected"),
        ({"topics": {f"persistent://t/n/{n}": RATES for n in range(5_001)}}, r"at most 5000"),
    ],
)
async def test_topics_that_are_none_are_refused(content: dict[str, Any], told: str) -> None:
    async with control_of(always(200, content)) as control:
        with pytest.raises(BrokerRefused, match=r"GET http://.*/topics: .*" + told) as refused:
            await control.topics(BUNDLE)
    assert len(str(refused.value)) < 700


async def test_only_409_with_a_reason_tells_the_agent_to_stop() -> None:
    async with control_of(always(409, {"reason": "agent epoch 1 is older than 2"})) as control:
        with pytest.raises(StaleAgent, match=r"PUT .*/lease: status 409: agent epoch 1 is older"):
            await control.renew_lease(agent_epoch=1, until_s=None, incarnation=None)
    async with control_of(always(409, b"Conflict")) as control:
        with pytest.raises(BrokerRefused, match=r"status 409: .*Invalid JSON") as refused:
            await control.renew_lease(agent_epoch=1, until_s=None, incarnation=None)
    assert not isinstance(refused.value, StaleAgent)


@pytest.mark.parametrize("status", [200, 202, 302, 400, 404, 412, 500, 503])
async def test_another_status_than_promised_is_a_refusal(status: int) -> None:
    answer = always(status, {"reason": "because"}, Location="/elsewhere")
    async with control_of(answer) as control:
        with pytest.raises(BrokerRefused, match=rf"status {status}: because; expected status 204"):
            await control.load(BUNDLE, agent_epoch=1, fencing_token=1)
        with pytest.raises(BrokerRefused, match=rf"DELETE .*fencingToken=2: status {status}"):
            await control.unload(BUNDLE, agent_epoch=1, fencing_token=2)


async def test_a_refusal_that_is_no_json_is_told_with_its_status() -> None:
    async with control_of(always(500, b"<h1>Oops</h1>")) as control:
        with pytest.raises(BrokerRefused, match=r"status 500: .*expected status 200, or a reason"):
            await control.stats()


async def test_an_endless_reason_is_cut() -> None:
    async with control_of(always(400, {"reason": "x" * 100_000})) as control:
        with pytest.raises(BrokerRefused) as refused:
            await control.stats()
    assert len(str(refused.value)) < 700


async def test_an_oversized_answer_is_refused_before_it_is_whole() -> None:
    async with control_of(always(200, b" " * 10_000_000)) as control:
        with pytest.raises(BrokerRefused, match=r"GET .*longer than expected, at most 8388608"):
            await control.stats()


async def test_after_an_oversized_answer_the_next_command_works() -> None:
    answers = iter([always(200, b" " * 2000), always(200, STATS)])

    async def answer(request: web.Request) -> web.StreamResponse:
        return await next(answers)(request)

    async with control_of(answer, max_answer_bytes=1000) as control:
        with pytest.raises(BrokerRefused):
            await control.stats()
        assert (await control.stats()).window_s == 2.0


async def test_a_compressed_answer_is_not_unpacked() -> None:
    packed = gzip.compress(json.dumps(STATS).encode())
    answer = always(200, packed, **{"Content-Encoding": "gzip"})
    async with control_of(answer) as control:
        with pytest.raises(BrokerRefused, match="Invalid JSON"):
            await control.stats()


async def test_a_broker_that_never_answers_is_unreachable() -> None:
    async with control_of_bytes(b"", then_hang=True, timeout_s=0.05) as control:
        with pytest.raises(BrokerUnreachable, match=r"GET .*: no whole answer within 0\.05 s"):
            await control.stats()


async def test_a_broker_that_stops_in_the_middle_of_its_answer_is_unreachable() -> None:
    sent = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"
    async with control_of_bytes(sent, then_hang=True, timeout_s=0.05) as control:
        with pytest.raises(BrokerUnreachable, match="no whole answer within"):
            await control.stats()


async def test_unloading_may_be_given_more_time_than_other_commands() -> None:
    released = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        if request.method == "DELETE":
            released.set()
            return web.Response(status=204)
        await released.wait()
        return web.Response(status=204)

    async with control_of(answer, timeout_s=0.05, unload_timeout_s=10.0) as control:
        with pytest.raises(BrokerUnreachable):
            await control.load(BUNDLE, agent_epoch=1, fencing_token=1)
        await control.unload(BUNDLE, agent_epoch=1, fencing_token=1)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
    ],
)
async def test_a_truncated_answer_is_as_none(sent: bytes) -> None:
    async with control_of_bytes(sent) as control:
        with pytest.raises(BrokerUnreachable, match=r"GET http://.*/v1/stats: \w+: "):
            await control.stats()


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"\x00\x01\x02\x03\r\n\r\n",
        b"HTTP/1.1 banana OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    ],
)
async def test_an_answer_that_is_no_http_is_refused(sent: bytes) -> None:
    async with control_of_bytes(sent) as control:
        with pytest.raises(BrokerRefused, match=r"GET http://.*/v1/stats: the answer is no HTTP"):
            await control.stats()


async def test_where_nobody_listens_the_broker_is_unreachable() -> None:
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    control = HttpBrokerControl(f"http://127.0.0.1:{port}", timeout_s=30.0)
    with pytest.raises(BrokerUnreachable, match=rf"GET http://127.0.0.1:{port}/.*Connect"):
        await control.stats()
    await control.close()


async def test_one_connection_serves_many_commands() -> None:
    peers = set()

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return web.json_response(STATS)

    async with control_of(answer) as control:
        for _ in range(5):
            await control.stats()
    assert len(peers) == 1


async def test_a_path_before_the_contracts_own_is_kept() -> None:
    paths = []

    async def answer(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.json_response(STATS)

    async with control_of(answer) as control:
        inner = HttpBrokerControl(control.root.replace("/loadmanager-broker/v1", "/deep/"))
        await inner.stats()
        await inner.close()
    assert paths == ["/deep/loadmanager-broker/v1/stats"]


async def test_after_closing_the_broker_is_unreachable() -> None:
    control = HttpBrokerControl("http://127.0.0.1:1")
    await control.close()
    with pytest.raises(BrokerUnreachable, match="closed"):
        await control.stats()


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://x", "http://x?a=b", "http://x#y"])
def test_a_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="expected http://host:port"):
        HttpBrokerControl(url)


@pytest.mark.parametrize(
    "options", [{"timeout_s": 0}, {"unload_timeout_s": -1.0}, {"max_answer_bytes": 0}]
)
def test_limits_must_leave_room(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="above zero"):
        HttpBrokerControl("http://127.0.0.1:1", **options)


@pytest.mark.parametrize("status", [204, 404, 429, 500, 503])
async def test_only_200_is_good_health(status: int) -> None:
    async with control_of(always(status, {"reason": "the disk is full"})) as control:
        with pytest.raises(BrokerRefused, match=f"GET .*/health: status {status}"):
            await control.health(10.0)


async def test_health_that_is_told_late_is_no_health() -> None:
    async with control_of_bytes(b"HTTP/1.1 200 OK\r\n", then_hang=True, timeout_s=60.0) as control:
        with pytest.raises(BrokerUnreachable, match=r"/health: no whole answer within 0\.2 s"):
            await control.health(0.2)
