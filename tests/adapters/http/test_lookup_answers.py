import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from loadmanager.config.sections import LookupSettings
from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import position
from loadmanager.core.ids import Namespace, TopicName
from loadmanager.core.load import BrokerUrls
from tests.adapters.http.conftest import PUBLIC, FakeLookup, RunningServer, StartServer, until

TOPIC = TopicName("persistent", PUBLIC, "orders")
PATH = "/lookup/v2/topic/persistent/public/default/orders"
LOOKUP_DATA = (
    '{"brokerUrl":"pulsar://b1:6650","brokerUrlTls":"pulsar+ssl://b1:6651",'
    '"httpUrl":"http://b1:8080","httpUrlTls":"https://b1:8443",'
    '"nativeUrl":"pulsar://b1:6650","brokerUrlSsl":""}'
)


def own(lookup: FakeLookup, topic: TopicName, broker: str, token: int = 1) -> str:
    bundle = lookup.bundle_in_picture(topic)
    assert bundle is not None
    lookup.give(bundle, broker, token)
    return bundle


async def test_a_lookup_names_the_owner_in_all_that_clients_read(server: RunningServer) -> None:
    placed = await server.ask(PATH)
    bundle = own(server.lookup, TOPIC, "b1:8080", token=77)
    known = await server.ask(PATH)
    for got, token in ((placed, "1"), (known, "77")):
        assert (got.status, got.text) == (200, LOOKUP_DATA)
        assert got.headers["Content-Type"] == "application/json"
        ours = {name: value for name, value in got.headers.items() if "Loadmanager" in name}
        assert ours == {
            "X-Loadmanager-Bundle": bundle,
            "X-Loadmanager-Fencing-Token": token,
            "X-Loadmanager-Epoch": "1",
        }


async def test_a_slash_of_the_topic_is_decoded_once(server: RunningServer) -> None:
    many = Boundaries.even(PUBLIC, 1024)
    server.lookup.namespaces[PUBLIC] = many
    for raw, local in (("a%2Fb", "a/b"), ("a%252Fb", "a%2Fb"), ("a+b", "a+b"), ("%C3%A4", "ä")):
        got = await server.ask(f"/lookup/v2/topic/persistent/public/default/{raw}")
        want = many.at(position(TopicName("persistent", PUBLIC, local), "murmur3"))
        assert got.headers["X-Loadmanager-Bundle"] == want


INNER = {"brokerUrl": "pulsar://b1.inner:6650", "brokerUrlTls": "", "brokerUrlSsl": ""} | {
    "httpUrl": "http://b1:8080",
    "httpUrlTls": "https://b1:8443",
    "nativeUrl": "pulsar://b1.inner:6650",
}
HEADER = "X-Pulsar-ListenerName"


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("?listenerName=inner", {}),
        ("", {HEADER: "inner"}),
        ("?listenerName=inner", {HEADER: "outer"}),
        ("?listenerName=", {HEADER: "inner"}),
    ],
)
async def test_a_listener_replaces_the_urls_that_it_has(
    server: RunningServer, query: str, headers: Mapping[str, str]
) -> None:
    for _ in range(3):
        assert (await server.ask(PATH)).text == LOOKUP_DATA  # never remembered for the other
        assert (await server.ask(PATH + query, headers=headers)).json() == INNER
    if not query:
        return
    outer = BrokerUrls(http_url="http://outer:80", broker_url="pulsar://outer:6650")
    for listeners, reason in (({"outer": outer}, "outer"), ({}, "none")):
        for bundle, owner in server.lookup.owners.items():
            server.lookup.owners[bundle] = replace(owner, listeners=listeners)
        server.lookup.cluster_state_version += 1
        got = await server.ask(PATH + "?listenerName=inner")
        told = f"broker b1:8080 has no listener 'inner'; its listeners: {reason}"
        assert (got.status, got.json()) == (412, {"reason": told})
        if listeners:
            told = (await server.ask(PATH + "?listenerName=outer")).json()
            names = ("brokerUrl", "httpUrl", "httpUrlTls")
            assert [told[name] for name in names] == [outer.broker_url, outer.http_url, ""]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("queue/public/default/orders", 405, "topic domain 'queue' is not valid"),
        ("persistent/pub%20lic/default/orders", 412, "namespace 'pub lic/default' is not valid"),
        ("persistent/public/default/%20", 412, "topic ' ' is not valid"),
        ("persistent/public/default/%ff", 412, "'%ff' is not percent-encoded UTF-8"),
        ("persistent/public/unknown/orders", 404, "namespace public/unknown not found"),
        ("persistent/public/default/", 404, "there is nothing at this path"),
        ("persistent/public/default/a/b", 404, "there is nothing at this path"),
        ("persistent/public/default", 404, "there is nothing at this path"),
    ],
)
async def test_what_cannot_be_looked_up_is_refused_with_a_reason(
    server: RunningServer, path: str, status: int, said: str
) -> None:
    got = await server.ask("/lookup/v2/topic/" + path)
    assert got.status == status
    assert said in got.json()["reason"]


async def test_without_a_broker_it_is_told_when_to_return(start_server: StartServer) -> None:
    server = await start_server(FakeLookup(taker=None))
    got = await server.ask(PATH)
    assert (got.status, got.headers["Retry-After"]) == (503, "3")
    assert got.json()["reason"].startswith("no broker can take public/default/0x")


async def test_too_many_lookups_are_refused_but_known_ones(start_server: StartServer) -> None:
    lookup = FakeLookup(gate=asyncio.Event())
    known = TopicName("persistent", Namespace("t/known"), "x")
    await lookup.create_namespace(Boundaries.even(known.namespace, 1))
    own(lookup, known, "b1:8080")
    server = await start_server(lookup, LookupSettings(max_concurrent=2))
    waiting = [asyncio.create_task(server.ask(PATH)) for _ in range(2)]
    await until(lambda: lookup.waiting == 2)
    refused = [await server.ask(PATH) for _ in range(5)]
    assert {got.status for got in refused} == {503}
    assert sorted(got.headers["Retry-After"] for got in refused) == ["1", "2", "3", "4", "5"]
    assert refused[0].json() == {"reason": "2 lookups are pending, the most allowed"}
    answered = await server.ask("/lookup/v2/topic/persistent/t/known/x")
    assert answered.status == 200
    assert server.sample("pulsar_broker_lookup_pending_requests") == 2
    assert lookup.gate is not None
    lookup.gate.set()
    assert [got.status for got in await asyncio.gather(*waiting)] == [200, 200]
    assert server.sample("pulsar_broker_lookup_pending_requests") == 0


async def test_the_bundle_of_a_topic_is_a_bare_range(server: RunningServer) -> None:
    refused = await server.ask("/lookup/v2/destination/persistent/t/c/ns/x")
    assert (refused.status, "/lookup/v2/topic/" in refused.json()["reason"]) == (404, True)
    got = await server.ask(PATH + "/bundle")
    bundle = server.lookup.bundle_in_picture(TOPIC)
    assert bundle is not None
    assert got.text == bundle.removeprefix("public/default/")
    assert got.headers["Content-Type"] == "text/plain; charset=utf-8"


async def test_every_outcome_is_counted(server: RunningServer) -> None:
    for _ in range(4):
        await server.ask(PATH)
    await server.ask("/lookup/v2/topic/persistent/public/unknown/orders")
    assert server.sample("pulsar_broker_lookup_answers_total") == 4
    assert server.sample("pulsar_broker_lookup_failures_total") == 1
    assert server.sample("loadmanager_lookup_duration_seconds_count") == 5
