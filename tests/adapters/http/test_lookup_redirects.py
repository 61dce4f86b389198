from dataclasses import replace

import pytest

from loadmanager.core.ids import TopicName
from loadmanager.core.load import BrokerUrls
from tests.adapters.http.conftest import PUBLIC, RunningServer

TOPIC = TopicName("persistent", PUBLIC, "a/b")


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
