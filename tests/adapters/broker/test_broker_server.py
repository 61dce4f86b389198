"""The in-memory broker's HTTP server: publishing, limits, refusals, leases by the clock."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
import pytest
from yarl import URL

from loadmanager.adapters.broker.contract import PREFIX
from loadmanager.adapters.broker.http_control import HttpBrokerControl
from loadmanager.core.ids import parse_bundle, parse_topic
from loadmanager.reference_broker.changes import EndReason, LeaseLost, ServingEnded
from loadmanager.reference_broker.server import spend_cpu

BUNDLE = parse_bundle("t/n/0x00000000_0xffffffff")
TOPIC_PATH = "/publish/persistent/t/n/orders"

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


def give_bundle(served: Any, until_s: float = 110.0) -> None:
    served.running.renew_lease(agent_epoch=1, until_s=until_s, incarnation="first")
    served.running.load(BUNDLE, agent_epoch=1, fencing_token=7)


async def asked(
    method: str, url: str | URL, **sent: Any
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    async with aiohttp.ClientSession() as http, http.request(method, url, **sent) as answer:
        return answer.status, await answer.json(), answer.headers


async def test_a_message_is_taken_and_counted_as_it_was_received(
    serve_broker: Any, clock: Any
) -> None:
    async with serve_broker(clock) as served:
        give_bundle(served)
        clock.now_s = 102.0
        status, answer, _ = await asked("POST", served.url + TOPIC_PATH, data=b"x" * 180)
        stats = served.running.stats().bundles[BUNDLE]
    assert status == 200
    assert answer == {
        "incarnation": "first",
        "bundle": BUNDLE,
        "fencingToken": 7,
        "clockSeconds": 102.0,
    }
    assert stats.bytes_in_per_s == pytest.approx(180 * stats.msgs_in_per_s)
    assert (stats.topics, stats.producers) == (1, 1)


async def test_a_name_with_slashes_and_percents_is_one_topic(serve_broker: Any, clock: Any) -> None:
    async with serve_broker(clock) as served:
        url = served.url + "/publish/non-persistent/t/n/a%2Fb%25%20%C3%A4"
        _, answer, _ = await asked("POST", URL(url, encoded=True))
        served.running.renew_lease(agent_epoch=1, until_s=110.0, incarnation="first")
        _, refused, _ = await asked("POST", URL(url, encoded=True))
    assert answer == {"reason": "the broker has no valid lease"}
    assert refused["reason"].startswith("non-persistent://t/n/a/b% ä is not served here")


async def test_producers_are_told_apart_by_header_or_connection(
    serve_broker: Any, clock: Any
) -> None:
    async with serve_broker(clock) as served:
        give_bundle(served)
        async with aiohttp.ClientSession() as http:
            for name in ("p1", "p2", "p1", None, None):
                headers = {} if name is None else {"X-Producer": name}
                async with http.post(served.url + TOPIC_PATH, headers=headers) as answer:
                    assert answer.status == 200
        stats = served.running.stats().bundles[BUNDLE]
    assert stats.producers == 3


async def test_without_a_lease_a_client_is_told_to_come_again(
    serve_broker: Any, clock: Any
) -> None:
    async with serve_broker(clock) as served:
        status, answer, headers = await asked("POST", served.url + TOPIC_PATH)
    assert (status, answer["reason"]) == (503, "the broker has no valid lease")
    assert headers["Retry-After"] == "1"


async def test_a_topic_of_another_broker_is_misdirected(serve_broker: Any, clock: Any) -> None:
    async with serve_broker(clock) as served:
        give_bundle(served)
        status, answer, headers = await asked("POST", served.url + "/publish/persistent/t/m/x")
    assert status == 421
    assert answer["reason"] == "persistent://t/m/x is not served here; look its owner up again"
    assert "Retry-After" not in headers


@pytest.mark.parametrize(
    ("method", "path", "body", "told"),
    [
        ("GET", "/nonsense", b"", (404, "GET /nonsense: Not Found")),
        ("POST", f"{PREFIX}/stats", b"", (405, "Method Not Allowed")),
        ("POST", "/publish/sometimes/t/n/x", b"", (400, "topic domain 'sometimes'")),
        ("POST", "/publish/persistent/t/n/%20", b"", (400, "not blank")),
        ("POST", "/publish/persistent/t!/n/x", b"", (400, "namespace 't!/n' is not valid")),
        ("POST", TOPIC_PATH, b"x" * 2001, (413, "Too Large")),
        ("PUT", f"{PREFIX}/lease", b"", (400, "PUT lease: content is")),
        ("PUT", f"{PREFIX}/lease", b'{"agentEpoch":1}', (400, "untilSeconds is missing")),
        (
            "PUT",
            f"{PREFIX}/lease",
            b'{"agentEpoch":1,"untilSeconds":null}',
            (400, "incarnation is missing"),
        ),
        (
            "PUT",
            f"{PREFIX}/lease",
            b'{"agentEpoch":1,"untilSeconds":null,"incarnation":""}',
            (400, "incarnation is ''"),
        ),
        ("PUT", f"{PREFIX}/lease", b'{"agentEpoch":"1"}', (400, "agentEpoch is '1'")),
        ("PUT", f"{PREFIX}/lease", b'{"agent_epoch":1}', (400, "agentEpoch is missing")),
        ("PUT", f"{PREFIX}/bundles/t/n/0x0_0x1", b"{}", (400, "bundle 't/n/0x0_0x1'")),
        ("PUT", f"{PREFIX}/bundles/{BUNDLE}", b"{}", (400, "agentEpoch is missing")),
        ("GET", f"{PREFIX}/bundles/{BUNDLE}/topics", b"", (404, f"{BUNDLE} is not served here")),
        ("GET", f"{PREFIX}/bundles/t/n/0x0_0x1/topics", b"", (400, "bundle 't/n/0x0_0x1'")),
        ("DELETE", f"{PREFIX}/bundles/{BUNDLE}", b"", (400, "agentEpoch is missing")),
        ("DELETE", f"{PREFIX}/bundles/{BUNDLE}?agentEpoch=-1", b"", (400, "agentEpoch is '-1'")),
        ("DELETE", f"{PREFIX}/bundles/{BUNDLE}?agentEpoch=x", b"", (400, "agentEpoch is 'x'")),
        (
            "DELETE",
            f"{PREFIX}/bundles/{BUNDLE}?agentEpoch=1",
            b"",
            (400, "fencingToken is missing"),
        ),
    ],
)
async def test_every_refusal_has_its_status_and_a_reason(
    serve_broker: Any, *, method: str, path: str, body: bytes, told: tuple[int, str]
) -> None:
    status, reason = told
    async with serve_broker(time.monotonic, max_body_bytes=2000) as served:
        got, answer, _ = await asked(method, served.url + path, data=body)
    assert got == status
    assert [*answer] == ["reason"]
    assert reason in answer["reason"]


async def test_commands_that_come_at_the_wrong_time_have_their_own_status(
    serve_broker: Any, clock: Any
) -> None:
    async with serve_broker(clock) as served:
        url = f"{served.url}{PREFIX}/bundles/{BUNDLE}"
        command = {"agentEpoch": 5, "fencingToken": 6}
        no_lease, _, _ = await asked("PUT", url, json=command)
        served.running.renew_lease(agent_epoch=5, until_s=110.0, incarnation="first")
        old_token, _, _ = await asked("PUT", url, json={**command, "fencingToken": 5})
        old_agent, _, _ = await asked("PUT", url, json={**command, "agentEpoch": 4})
        older = url + "?agentEpoch=5&fencingToken=6"
        served.running.load(BUNDLE, agent_epoch=5, fencing_token=7)
        old_unload, _, _ = await asked("DELETE", older)
    assert (no_lease, old_token, old_agent, old_unload) == (503, 412, 409, 412)


async def test_it_says_what_it_is_and_that_it_is_well(serve_broker: Any, clock: Any) -> None:
    async with serve_broker(clock) as served, aiohttp.ClientSession() as http:
        async with http.get(served.url) as answer:
            assert "in-memory topic broker" in await answer.text()
        async with http.get(f"{served.url}{PREFIX}/health") as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "ok"})


async def test_stats_tell_version_and_process(serve_broker: Any, clock: Any) -> None:
    async with serve_broker(clock, version="1.2", process_id=42) as served:
        control = HttpBrokerControl(served.url)
        stats = await control.stats()
        await control.close()
    assert (stats.version, stats.process_id) == ("1.2", 42)


async def test_of_too_many_topics_the_busiest_are_told(
    serve_broker: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmanager.adapters.broker.contract.MAX_TOPICS", 2)
    async with serve_broker(clock) as served:
        give_bundle(served)
        for name in ("a", "b", "b", "c", "d", "d", "d"):
            ticket = served.running.begin_publish(parse_topic(f"t/n/{name}"))
            served.running.finish_publish(ticket, producer="p", payload_bytes=1)
        _, answer, _ = await asked("GET", f"{served.url}{PREFIX}/bundles/{BUNDLE}/topics")
    assert [*answer["topics"]] == ["persistent://t/n/d", "persistent://t/n/b"]


async def test_a_client_that_does_not_send_its_body_is_given_up(
    serve_broker: Any, clock: Any
) -> None:
    async with serve_broker(clock, body_timeout_s=0.05) as served:
        port = int(served.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"POST {TOPIC_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx".encode()
        )
        status_line = await reader.readline()
        writer.close()
        await writer.wait_closed()
    assert b" 408 " in status_line


async def test_a_lease_ends_by_the_clock_even_if_nobody_asks(
    serve_broker: Any, eventually: Eventually
) -> None:
    async with serve_broker(time.monotonic) as served:
        give_bundle(served, until_s=time.monotonic() + 0.5)
        await eventually(lambda: isinstance(served.changes[-1], ServingEnded))
    lost, ended = served.changes[3:5]
    assert isinstance(lost, LeaseLost)
    assert isinstance(ended, ServingEnded)
    assert ended.why is EndReason.LEASE_LOST
    assert ended.end_s == lost.until_s <= ended.at_s


async def test_a_renewal_moves_the_end_that_is_waited_for(
    serve_broker: Any, eventually: Eventually
) -> None:
    async with serve_broker(time.monotonic) as served:
        give_bundle(served, until_s=time.monotonic() + 30)
        served.running.renew_lease(
            agent_epoch=2, until_s=time.monotonic() + 0.5, incarnation="first"
        )
        await eventually(lambda: isinstance(served.changes[-1], LeaseLost))
        assert served.running.state().serving == {BUNDLE: 7}


async def test_messages_beyond_the_queue_are_sent_away_and_commands_are_not(
    serve_broker: Any, clock: Any, eventually: Eventually
) -> None:
    async with serve_broker(clock, max_waiting=2, cpu_s_per_message=0.1) as served:
        give_bundle(served)
        posts = [asyncio.create_task(asked("POST", served.url + TOPIC_PATH)) for _ in range(6)]
        await eventually(lambda: any(post.done() for post in posts))
        health, _, _ = await asked("GET", f"{served.url}{PREFIX}/health")
        outcomes = [status for status, _, _ in await asyncio.gather(*posts)]
    assert health == 200
    assert 503 in outcomes
    assert 200 in outcomes


async def test_a_command_does_not_wait_for_the_messages_that_came_before_it(
    serve_broker: Any, clock: Any, eventually: Eventually
) -> None:
    async with serve_broker(clock, cpu_s_per_message=0.004) as served:
        give_bundle(served)
        posts = [asyncio.create_task(asked("POST", served.url + TOPIC_PATH)) for _ in range(80)]
        await eventually(lambda: any(post.done() for post in posts))
        await asked("GET", f"{served.url}{PREFIX}/health")
        done_before = sum(post.done() for post in posts)
        await asyncio.gather(*posts)
    assert done_before < 40


async def test_an_unload_waits_for_one_message_and_not_for_the_queue(
    serve_broker: Any, clock: Any, eventually: Eventually
) -> None:
    async with serve_broker(clock, cpu_s_per_message=0.1) as served:
        give_bundle(served)
        posts = [asyncio.create_task(asked("POST", served.url + TOPIC_PATH)) for _ in range(4)]
        await eventually(lambda: any(post.done() for post in posts))
        await served.running.unload(BUNDLE, agent_epoch=1, fencing_token=7)
        done_at_unload = len([change for change in served.changes if change.event == "interval"])
        statuses = [status for status, _, _ in await asyncio.gather(*posts)]
    assert done_at_unload == 1
    assert 200 in statuses
    assert 421 in statuses


async def test_an_unload_does_not_wait_for_the_grant_that_follows(
    serve_broker: Any, clock: Any, eventually: Eventually
) -> None:
    async with serve_broker(clock) as served:
        give_bundle(served)
        running = served.running
        ticket = running.begin_publish(parse_topic("t/n/orders"))
        unloading = asyncio.create_task(running.unload(BUNDLE, agent_epoch=1, fencing_token=7))
        await eventually(lambda: served.changes[-1].event == "unload")
        # Both before the waiting task has its turn.
        running.abandon(ticket)
        running.load(BUNDLE, agent_epoch=1, fencing_token=8)
        await unloading
        assert running.state().serving == {BUNDLE: 8}


async def test_a_message_under_way_at_a_stop_is_not_taken(
    serve_broker: Any, clock: Any, eventually: Eventually
) -> None:
    async with serve_broker(clock, cpu_s_per_message=0.2) as served:
        give_bundle(served)
        post = asyncio.create_task(asked("POST", served.url + TOPIC_PATH))
        await eventually(lambda: any(one.in_service for one in served.running._serving))
        served.running.stop()
        status, _, _ = await post
    assert status == 503


async def test_a_stop_does_not_wait_for_a_message_that_takes_long(
    serve_broker: Any, clock: Any, eventually: Eventually
) -> None:
    async with serve_broker(clock, cpu_s_per_message=60, shutdown_s=0.05) as served:
        give_bundle(served)
        post = asyncio.create_task(asked("POST", served.url + TOPIC_PATH))
        await eventually(lambda: any(one.in_service for one in served.running._serving))
    with pytest.raises(aiohttp.ClientError):
        await post


async def test_at_a_stop_nothing_is_served_and_it_is_recorded(
    serve_broker: Any, clock: Any
) -> None:
    async with serve_broker(clock) as served:
        give_bundle(served)
    assert [change.event for change in served.changes[-2:]] == ["interval", "stop"]


async def test_cpu_time_is_really_spent() -> None:
    began_s = time.thread_time()
    await spend_cpu(0.02)
    assert time.thread_time() - began_s >= 0.02


async def test_others_get_their_turn_while_cpu_time_is_spent() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await spend_cpu(0.05)
    counting.cancel()
    assert turns >= 5
