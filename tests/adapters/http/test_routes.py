import pytest
from aiohttp import web

from loadmanager.adapters.http.routes import (
    Refused,
    Role,
    Route,
    RouteTable,
    Target,
    refusal_of,
    target_of,
    text_reply,
)
from loadmanager.core.errors import LoadManagerError


async def answer(_request: web.BaseRequest, _target: Target) -> web.StreamResponse:
    return text_reply("")


async def other(_request: web.BaseRequest, _target: Target) -> web.StreamResponse:
    return text_reply("other")


TABLE = RouteTable(
    [Route("GET", "/a/{}", answer), Route("PUT", "/a/{}", answer), Route("*", "/all/{...}", answer)]
)


@pytest.mark.parametrize(
    ("raw", "captured"),
    [
        ("/a/x%2Fy", ("x/y",)),
        ("/a/%2525?q=%25", ("%25",)),
        ("http://host:80/a/x", ("x",)),
        ("/all/x", ("x",)),
        ("/all/x//y%20", ("x", "", "y ")),
    ],
)
def test_segments_are_matched_raw_and_decoded_once(raw: str, captured: tuple[str, ...]) -> None:
    _, target = TABLE.find("GET", target_of(raw))
    assert target.captured == captured


@pytest.mark.parametrize(
    ("method", "raw", "status"),
    [
        ("GET", "/a", 404),
        ("GET", "/a/", 404),
        ("GET", "/a/x/", 404),
        ("GET", "/A/x", 404),
        ("GET", "/all", 404),
        ("GET", "http://host", 404),
        ("GET", "/a/%ff", 412),
        ("GET", "ftp://host/a/x", 400),
        ("GET", "*", 400),
        ("GET", "/a/\xe4", 400),
        ("GET", "/a/\udcff", 400),
        ("DELETE", "/a/x", 405),
    ],
)
def test_what_has_no_route_is_refused(method: str, raw: str, status: int) -> None:
    with pytest.raises(Refused) as raised:
        TABLE.find(method, target_of(raw))
    assert raised.value.status == status


def test_options_tell_the_methods_of_a_path() -> None:
    route, target = TABLE.find("OPTIONS", target_of("/a/x"))
    assert (route.method, route.role, target.captured) == ("OPTIONS", Role.NOBODY, ("x",))


def test_a_word_in_a_pattern_is_never_captured_by_another() -> None:
    table = RouteTable(
        [
            Route("GET", "/a/{}/{}", answer),
            Route("PUT", "/a/{}/mine", answer),
            Route("GET", "/a/yours/{...}", answer),
            Route("GET", "/a/{}/{}", other),
        ]
    )
    found = {
        path: table.find("GET", target_of(path))[0].pattern
        for path in ("/a/x/y", "/a/yours/x", "/a/yours/x/y", "/a/%7B%7D/x", "/a/{}/x")
    }
    assert found == {
        "/a/x/y": "/a/{}/{}",
        "/a/yours/x": "/a/yours/{...}",
        "/a/yours/x/y": "/a/yours/{...}",
        "/a/%7B%7D/x": "/a/{}/{}",
        "/a/{}/x": "/a/{}/{}",
    }
    assert table.find("GET", target_of("/a/x/y"))[0].handler is answer
    with pytest.raises(Refused) as raised:
        table.find("GET", target_of("/a/x/mine"))
    assert (raised.value.status, raised.value.headers) == (405, {"Allow": "PUT"})


def test_query_parameters_are_decoded_and_the_first_counts() -> None:
    target = target_of("/a/x?n=a+b%2F&n=c&empty=&bare")
    assert [target.query(name) for name in ("n", "empty", "bare", "none")] == ["a b/", "", "", ""]


def test_an_error_no_client_can_cause_is_not_made_a_refusal() -> None:
    with pytest.raises(LoadManagerError, match="ours"):
        refusal_of(LoadManagerError("ours"))
