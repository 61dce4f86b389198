import json
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from pydantic_core import to_jsonable_python

from loadmanager.core.errors import InvalidName, LoadManagerError
from loadmanager.ports.administration import (
    BrokerUnknown,
    BundleUnknown,
    Conflict,
    MergeRefused,
    Missing,
    SplitRefused,
    Unfit,
    UnloadRefused,
)
from loadmanager.ports.lookup import (
    NamespaceTaken,
    NamespaceUnknown,
    NotLeader,
    SubjectUnknown,
    Unavailable,
)

SERVER_NAME: Final = "loadmanager"
_JSON_TYPE: Final = "application/json"
_TEXT_TYPE: Final = "text/plain; charset=utf-8"

_STATUSES: Final[tuple[tuple[tuple[type[LoadManagerError], ...], int], ...]] = (
    ((NamespaceUnknown, SubjectUnknown, BundleUnknown, BrokerUnknown, Missing), 404),
    ((NamespaceTaken, NotLeader, UnloadRefused, Conflict), 409),
    ((InvalidName, MergeRefused, SplitRefused, Unfit), 412),
)


class Refused(LoadManagerError):
    """A request is answered with an error status, and ``reason`` as the text for the client."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers or {}


def json_reply(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return ``value`` as a JSON response; models in it are written under their aliases."""
    body = json.dumps(value, separators=(",", ":"), default=_plain).encode()
    return bytes_reply(body, _JSON_TYPE, status, headers)


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else to_jsonable_python(value, by_alias=True)


def text_reply(text: str, status: int = 200, content_type: str = _TEXT_TYPE) -> web.Response:
    return bytes_reply(text.encode(), content_type, status)


def bytes_reply(
    body: bytes,
    content_type: str,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> web.Response:
    sent = {"Content-Type": content_type, "Server": SERVER_NAME, **(headers or {})}
    return web.Response(body=body, status=status, headers=sent)


def empty_reply(status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, headers={"Server": SERVER_NAME, **(headers or {})})


def refusal_reply(refused: Refused) -> web.Response:
    return json_reply({"reason": str(refused)}, refused.status, refused.headers)


def raw_refusal(refused: Refused) -> bytes:
    body = json.dumps({"reason": str(refused)}, separators=(",", ":")).encode()
    return raw_head(refused.status, _JSON_TYPE, len(body), refused.headers) + body


def raw_head(
    status: int, content_type: str, size_bytes: int, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return the head of a response, for a connection that is closed after it."""
    sent = {
        "Content-Type": content_type,
        "Content-Length": str(size_bytes),
        "Server": SERVER_NAME,
        "Connection": "close",
        **(headers or {}),
    }
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in sent.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def refusal_of(error: LoadManagerError) -> Refused:
    """Return the HTTP refusal for an error of the core or of the application.

    A topic's domain is part of Pulsar's URL paths, so an invalid one is answered as a wrong method
    (405), any other invalid name as a failed precondition (412). Raises `LoadManagerError`: the
    error itself, if a client cannot have caused it.
    """
    match error:
        case Refused():
            return error
        case InvalidName(kind="topic domain"):
            return Refused(405, str(error), {"Allow": "GET"})
        case Unavailable():
            return unavailable(str(error), error.retry_after_s)
    for kinds, status in _STATUSES:
        if isinstance(error, kinds):
            return Refused(status, str(error))
    raise error


def unavailable(reason: str, retry_after_s: float) -> Refused:
    """Return a temporary refusal (503); ``Retry-After`` is rounded up to whole seconds."""
    return Refused(503, reason, {"Retry-After": str(max(1, math.ceil(retry_after_s)))})
