"""The in-memory broker's HTTP server: publishing, limits, refusals, leases by the clock."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from waiting import eventually
from yarl import URL

from loadmanager.adapters.broker.contract import PREFIX, SecretUnusable, read_secret
from loadmanager.adapters.broker.http_control import HttpBrokerControl
from loadmanager.config.sections import BrokerSettings
from loadmanager.core.ids import BrokerId, parse_bundle, parse_topic
from loadmanager.ports.broker import BrokerRefused, StaleAgent
from loadmanager.reference_broker.changes import EndReason, LeaseLost, ServingEnded
from loadmanager.reference_broker.memory_broker import MemoryBroker
from loadmanager.reference_broker.server import ServerOptions, broker_application

BUNDLE = parse_bundle("t/n/0x00000000_0xffffffff")
PUBLISH = "/publish/persistent/t/n/orders"
LEASE, GRANT = f"{PREFIX}/lease", f"{PREFIX}/bundles/{BUNDLE}"


def give_bundle(served: Any, until_s: float = 110.0) -> None:
    served.running.renew_lease(agent_epoch=1, until_s=until_s, incarnation="first")
    served.running.load(BUNDLE, agent_epoch=1, fencing_token=7)


async def asked(
    method: str, url: str | URL, **sent: Any
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    async with aiohttp.ClientSession() as http, http.request(method, url, **sent) as answer:
        return answer.status, await answer.json(), answer.headers


def posted(served: Any, count: int = 1) -> list[asyncio.Task[Any]]:
    url = served.url + PUBLISH
    return [asyncio.create_task(asked("POST", url)) for _ in range(count)]


async def test_messages_are_counted_as_they_are_received(serve_broker: Any, clock: Any) -> None:
    async with serve_broker(clock, version="1.2", process_id=42) as served:
        url = served.url + PUBLISH
        status, answer, headers = await asked("POST", url)
        assert (status, answer) == (503, {"reason": "the broker has no valid lease"})
        assert headers["Retry-After"] == "1"
        give_bundle(served)
        clock.now_s = 102.0
        async with aiohttp.ClientSession() as http:
            for name in ("p1", "p2", "p1", None, None):
                shown = {} if name is None else {"X-Producer": name}
                async with http.post(url, headers=shown, data=b"x" * 180) as taken:
                    assert (taken.status, await taken.json()) == (
                        200,
                        {
                            "incarnation": "first",
                            "bundle": BUNDLE,
                            "fencingToken": 7,
                            "clockSeconds": 102.0,
                        },
                    )
        control = HttpBrokerControl(served.url)
        stats = await control.stats()
        await control.close()
        assert (stats.version, stats.process_id) == ("1.2", 42)
        told = stats.bundles[BUNDLE]
        assert told.bytes_in_per_s == pytest.approx(180 * told.msgs_in_per_s)
        assert (told.topics, told.producers) == (1, 3)
        awkward = URL(f"{served.url}/publish/non-persistent/t/m/a%2Fb%25%20%C3%A4", encoded=True)
        status, answer, headers = await asked("POST", awkward)
        assert (status, answer["reason"], "Retry-After" in headers) == (
            421,
            "non-persistent://t/m/a/b% ä is not served here; look its owner up again",
            False,
        )
        async with aiohttp.ClientSession() as http, http.get(served.url) as page:
            assert "in-memory topic broker" in await page.text()
        assert (await asked("GET", f"{served.url}{PREFIX}/health"))[1] == {"status": "ok"}
    assert [change.event for change in served.changes[-2:]] == ["interval", "stop"]


@pytest.mark.parametrize(
    ("request_line", "body", "status", "reason"),
    [
        ("GET /nonsense", "", 404, "GET /nonsense: Not Found"),
        (f"POST {PREFIX}/stats", "", 405, "Method Not Allowed"),
        ("POST /publish/sometimes/t/n/x", "", 400, "topic domain 'sometimes'"),
        ("POST /publish/persistent/t/n/%20", "", 400, "not blank"),
        ("POST /publish/persistent/t!/n/x", "", 400, "namespace 't!/n' is not valid"),
        (f"POST {PUBLISH}", "x" * 2001, 413, "Too Large"),
        (f"PUT {LEASE}", "", 400, "PUT lease: content is"),
        (f"PUT {LEASE}", '{"agentEpoch":1}', 400, "untilSeconds is missing"),
        (f"PUT {LEASE}", '{"agentEpoch":1,"untilSeconds":null}', 400, "incarnation is missing"),
        (f"PUT {LEASE}", '{"agentEpoch":1,"untilSeconds":9,"incarnation":""}', 400, "is ''"),
        (f"PUT {LEASE}", '{"agentEpoch":"1"}', 400, "agentEpoch is '1'"),
        (f"PUT {LEASE}", '{"agent_epoch":1}', 400, "agentEpoch is missing"),
        (f"PUT {PREFIX}/bundles/t/n/0x0_0x1", "{}", 400, "bundle 't/n/0x0_0x1'"),
        (f"PUT {GRANT}", "{}", 400, "agentEpoch is missing"),
        (f"GET {GRANT}/topics", "", 404, f"{BUNDLE} is not served here"),
        (f"GET {PREFIX}/bundles/t/n/0x0_0x1/topics", "", 400, "bundle 't/n/0x0_0x1'"),
        (f"DELETE {GRANT}", "", 400, "agentEpoch is missing"),
        (f"DELETE {GRANT}?agentEpoch=-1", "", 400, "agentEpoch is '-1'"),
        (f"DELETE {GRANT}?agentEpoch=x", "", 400, "agentEpoch is 'x'"),
        (f"DELETE {GRANT}?agentEpoch=1", "", 400, "fencingToken is missing"),
    ],
)
async def test_every_refusal_has_its_status_and_a_reason(
    serve_broker: Any, request_line: str, body: str, status: int, reason: str
) -> None:
    method, _, path = request_line.partition(" ")
    async with serve_broker(time.monotonic, max_body_bytes=2000) as served:
        got, answer, _ = await asked(method, served.url + path, data=body.encode())
    assert (got, [*answer]) == (status, ["reason"])
    assert reason in answer["reason"]


async def test_of_too_many_topics_the_busiest_are_told(
    serve_broker: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmanager.adapters.broker.contract.MAX_TOPICS", 2)
    async with serve_broker(clock) as served:
        give_bundle(served)
        for name in ("a", "b", "b", "c", "d", "d", "d"):
            ticket = served.running.begin_publish(parse_topic(f"t/n/{name}"))
            served.running.finish_publish(ticket, producer="p", payload_bytes=1)
        _, answer, _ = await asked("GET", f"{served.url}{GRANT}/topics")
    assert [*answer["topics"]] == ["persistent://t/n/d", "persistent://t/n/b"]


async def test_a_client_that_sends_no_body_is_given_up(serve_broker: Any, clock: Any) -> None:
    async with serve_broker(clock, body_timeout_s=0.05) as served:
        port = int(served.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {PUBLISH} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx"
        writer.write(head.encode())
        assert b" 408 " in await reader.readline()
        writer.close()


async def test_a_lease_ends_by_the_clock_even_if_nobody_asks(serve_broker: Any) -> None:
    async with serve_broker(time.monotonic) as served:
        give_bundle(served, until_s=time.monotonic() + 30)
        # Sooner than what is waited for.
        served.running.renew_lease(
            agent_epoch=2, until_s=time.monotonic() + 0.1, incarnation="first"
        )
        await eventually(lambda: isinstance(served.changes[-1], LeaseLost))
        assert served.running.state().serving == {BUNDLE: 7}
    async with serve_broker(time.monotonic) as served:
        give_bundle(served, until_s=time.monotonic() + 0.1)
        await eventually(lambda: isinstance(served.changes[-1], ServingEnded))
    lost, ended = served.changes[3:5]
    assert isinstance(lost, LeaseLost)
    assert isinstance(ended, ServingEnded)
    assert ended.why is EndReason.LEASE_LOST
    assert ended.end_s == lost.until_s <= ended.at_s


async def test_only_messages_beyond_the_queue_are_sent_away(serve_broker: Any, clock: Any) -> None:
    async with serve_broker(clock, max_waiting=2, cpu_s_per_message=0.05) as served:
        give_bundle(served)
        posts = posted(served, 6)
        await eventually(lambda: any(post.done() for post in posts))
        health, _, _ = await asked("GET", f"{served.url}{PREFIX}/health")
        outcomes = [status for status, _, _ in await asyncio.gather(*posts)]
    assert health == 200
    assert {200, 503} == set(outcomes)


async def test_an_unload_does_not_wait_for_the_next_grant(serve_broker: Any, clock: Any) -> None:
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


async def test_a_stop_neither_takes_nor_awaits_a_message(serve_broker: Any, clock: Any) -> None:
    for cpu_s in (0.2, 60):
        async with serve_broker(clock, cpu_s_per_message=cpu_s, shutdown_s=0.05) as served:
            give_bundle(served)
            (post,) = posted(served)
            await eventually(lambda s=served: any(one.in_service for one in s.running._serving))  # type: ignore[misc] # bound in the loop
            if cpu_s < 1:
                served.running.stop()
                assert (await post)[0] == 503
    with pytest.raises(aiohttp.ClientError):
        await post


SHOWN = "a-secret-of-some-length"
MOST = 2**63 - 1
COMMANDS = (
    ("PUT", LEASE, {"agentEpoch": MOST, "untilSeconds": None, "incarnation": None}),
    ("PUT", GRANT, {"agentEpoch": MOST, "fencingToken": MOST}),
    ("DELETE", f"{GRANT}?agentEpoch={MOST}&fencingToken={2**62}", None),
    ("GET", f"{PREFIX}/stats", None),
    ("GET", f"{GRANT}/topics", None),
)
WRONG: tuple[list[str], ...] = (
    [],
    [SHOWN],
    *([f"Bearer {SHOWN[:-1]}"], [f"Bearer {SHOWN}x"], [f"bearer {SHOWN}"]),
    [f"Bearer \u00e4{SHOWN}"],
    [f"Bearer {SHOWN}"] * 2,
)


async def test_without_the_secret_nothing_changes() -> None:
    broker = MemoryBroker(
        broker="b:1", incarnation="one", clock_s=lambda: 100.0, record=lambda _: None
    )
    server = TestServer(broker_application(broker, ServerOptions(control_secret=SHOWN)))
    async with TestClient(server) as client:
        for shown in WRONG:
            headers = [("Authorization", each) for each in shown]
            for method, path, body in COMMANDS:
                answer = await client.request(method, path, json=body, headers=headers)
                assert answer.status == 401, (method, path)
                assert answer.headers["WWW-Authenticate"] == "Bearer"
                assert "Authorization" in (await answer.json())["reason"]
                assert SHOWN not in await answer.text()
        assert (await client.get(f"{PREFIX}/health")).status == 200
        assert (await client.post(PUBLISH, data=b"x")).status == 503  # There is no lease.
        url = str(server.make_url("")).rstrip("/")
        stranger, control = HttpBrokerControl(url), HttpBrokerControl(url, secret=SHOWN)
        with pytest.raises(BrokerRefused, match=r"status 401: .*Authorization: Bearer"):
            await stranger.renew_lease(agent_epoch=1, until_s=None, incarnation=None)
        await stranger.close()
        # The highest epoch that came with a command is still the lowest there is.
        await control.renew_lease(agent_epoch=0, until_s=120.0, incarnation="one")
        await control.load(BUNDLE, agent_epoch=0, fencing_token=1)
        assert (await control.stats()).bundles.keys() == {BUNDLE}
        await control.topics(BUNDLE)
        await control.unload(BUNDLE, agent_epoch=0, fencing_token=1)
        with pytest.raises(BrokerRefused, match=r"status 503"):
            await control.load(BUNDLE, agent_epoch=7, fencing_token=2)
        with pytest.raises(StaleAgent):
            await control.load(BUNDLE, agent_epoch=6, fencing_token=3)
        await control.close()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (f"{SHOWN}\n".encode(), ""),
        (None, "No such file"),
        *(
            (text, "no usable secret")
            for text in (b"", b"short", b"two words of a secret", b"x" * 1025)
        ),
        ("sécret of some length".encode(), "no ASCII"),
    ],
)
def test_a_file_without_a_secret_is_named(tmp_path: Any, content: bytes | None, why: str) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    if not why:
        assert read_secret(path) == SHOWN
        return
    with pytest.raises(SecretUnusable, match=rf"{path}: {why}.*expected a file with 16 to 1,024"):
        read_secret(path)


@pytest.mark.parametrize(
    ("url", "secret", "exposed"),
    [
        *((f"http://{host}:8080", "", False) for host in ("127.0.0.1", "[::1]", "localhost")),
        ("http://broker-1:8080", "", True),
        ("https://10.0.0.1:8080", "", True),
        ("http://broker-1:8080", "/etc/secret", False),
    ],
)
def test_a_url_that_strangers_reach_needs_a_secret(url: str, secret: str, exposed: bool) -> None:
    settings = BrokerSettings(
        id=BrokerId("broker-1:8080"), control_url=url, control_secret_file=secret
    )
    assert bool(settings.exposure()) is exposed
    assert not exposed or url in settings.exposure()
