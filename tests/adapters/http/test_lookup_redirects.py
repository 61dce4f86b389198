from dataclasses import replace

import pytest

from loadmanager.config.sections import LookupSettings
from loadmanager.core.ids import TopicName
from loadmanager.core.load import BrokerUrls
from loadmanager.ports.lookup import Redirection
from tests.adapters.http.conftest import PUBLIC, FakeLookup, RunningServer, StartServer

TOPIC = TopicName("persistent", PUBLIC, "a/b")
PATH = "/lookup/v2/topic/persistent/public/default/a%2Fb"
REDIRECT = LookupSettings(mode="redirect")


async def test_a_chain_follower_leader_owner_ends_with_it(start_server: StartServer) -> None:
    owner = await start_server(FakeLookup(taker="b3:8080"), REDIRECT)
    leader = await start_server(
        FakeLookup(redirection=Redirection(owner.url, authoritative=True)), REDIRECT
    )
    follower = await start_server(
        FakeLookup(redirection=Redirection(leader.url, authoritative=False)), REDIRECT
    )
    first = await follower.ask(PATH + "?listenerName=inner")
    assert (first.status, first.headers["Location"]) == (
        307,
        f"{leader.url}{PATH}?authoritative=false&listenerName=inner",
    )
    second = await leader.ask(first.headers["Location"].removeprefix(leader.url))
    assert (second.status, second.headers["Location"]) == (
        307,
        f"{owner.url}{PATH}?authoritative=true&listenerName=inner",
    )
    async with follower.client.get(
        follower.url + "/lookup/v2/topic/persistent/public/default/x"
    ) as got:
        assert got.status == 200
        assert (await got.json())["httpUrl"] == "http://b3:8080"
        assert len(got.history) == 2
    assert follower.sample("pulsar_broker_lookup_redirects_total") == 2


async def test_a_known_owner_is_answered_without_a_redirect(start_server: StartServer) -> None:
    lookup = FakeLookup(redirection=Redirection("http://127.0.0.1:1", authoritative=False))
    bundle = lookup.bundle_in_picture(TOPIC)
    assert bundle is not None
    lookup.give(bundle, "b2:8080")
    server = await start_server(lookup, REDIRECT)
    got = await server.ask(PATH)
    assert (got.status, got.json()["httpUrl"]) == (200, "http://b2:8080")


async def test_sidecars_that_name_each_other_do_not_loop(start_server: StartServer) -> None:
    one = await start_server(FakeLookup(taker=None), REDIRECT)
    two = await start_server(FakeLookup(taker=None), REDIRECT)
    one.lookup.redirection = Redirection(two.url, authoritative=False)
    two.lookup.redirection = Redirection(one.url, authoritative=False)
    async with one.client.get(one.url + "/lookup/v2/topic/persistent/public/default/x") as got:
        assert got.status == 503
        assert got.headers["Retry-After"] == "3"
        assert len(got.history) == 1


async def test_who_was_sent_here_by_the_leader_is_never_sent_on(start_server: StartServer) -> None:
    class AlwaysElsewhere(FakeLookup):
        async def find_owner_or_redirect(
            self, topic: TopicName, *, authoritative: bool
        ) -> Redirection:
            assert topic == TOPIC
            return Redirection("http://127.0.0.1:1", authoritative)

    server = await start_server(AlwaysElsewhere(), REDIRECT)
    got = await server.ask(PATH + "?authoritative=true")
    assert (got.status, got.headers["Retry-After"]) == (503, "1")
    assert "redirected by its leader already" in got.json()["reason"]


async def test_in_answer_mode_nobody_is_redirected(start_server: StartServer) -> None:
    server = await start_server(
        FakeLookup(redirection=Redirection("http://127.0.0.1:1", authoritative=False))
    )
    for query in ("", "?authoritative=false", "?authoritative=true"):
        assert (await server.ask(PATH + query)).status == 200


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
async def test_redirects_keep_method_path_and_query(server: RunningServer, method: str) -> None:
    path = "/publish/persistent/public/default/a%2Fb?key=1&x=%2F"
    got = await server.ask("/redirect" + path, method, data=b"payload" if method != "GET" else None)
    assert (got.status, got.headers["Location"]) == (307, "http://b1:8080" + path)


async def test_redirect_goes_to_the_owner_of_the_last_four_segments(server: RunningServer) -> None:
    bundle = server.lookup.bundle_in_picture(TOPIC)
    assert bundle is not None
    server.lookup.give(bundle, "b5:8080")
    got = await server.ask("/redirect/persistent/public/default/a%2Fb")
    assert got.headers["Location"] == "http://b5:8080/persistent/public/default/a%2Fb"
    binary = replace(server.lookup.owners[bundle], urls=BrokerUrls(http_url=""))
    server.lookup.owners[bundle] = binary
    for path, status, said in (
        ("persistent/public/default/a%2Fb", 412, "broker b5:8080 has no HTTP URL to redirect to"),
        ("public/default/x", 404, "must end in {domain}/{tenant}/{namespace}/{topic}"),
        ("persistent/public/unknown/x", 404, "namespace public/unknown not found"),
    ):
        got = await server.ask(f"/redirect/{path}")
        assert (got.status, said in got.json()["reason"]) == (status, True)
