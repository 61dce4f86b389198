import pytest
from aiohttp import web

from loadmanager.adapters.http import Refused, Route, Target, text_reply
from loadmanager.adapters.http.replies import refusal_of
from loadmanager.adapters.http.routes import RouteTable, target_of
from loadmanager.core.errors import LoadManagerError


async def answer(_request: web.BaseRequest, _target: Target) -> web.StreamResponse:
    return text_reply("")


TABLE = RouteTable(
    [
        Route("GET", "/a/{}", answer),
        Route("PUT", "/a/{}", answer),
        Route("*", "/all/{...}", answer),
    ]
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


def test_a_wrong_method_is_told_every_right_one() -> None:
    with pytest.raises(Refused, match="DELETE is not for this path") as raised:
        TABLE.find("DELETE", target_of("/a/x"))
    assert raised.value.headers == {"Allow": "GET, PUT"}


def test_query_parameters_are_decoded_and_the_first_counts() -> None:
    target = target_of("/a/x?n=a+b%2F&n=c&empty=&bare")
    assert [target.query(name) for name in ("n", "empty", "bare", "none")] == ["a b/", "", "", ""]


def test_an_error_no_client_can_cause_is_not_made_a_refusal() -> None:
    with pytest.raises(LoadManagerError, match="ours"):
        refusal_of(LoadManagerError("ours"))
