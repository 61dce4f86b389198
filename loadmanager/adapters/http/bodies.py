import asyncio
import json
from typing import Any, Final

from aiohttp import web
from aiohttp.http import HttpVersion11
from aiohttp.web import RequestPayloadError
from pydantic import TypeAdapter, ValidationError

from loadmanager.adapters.http.parameters import fault_text
from loadmanager.adapters.http.replies import Refused

_WITHIN_S: Final = 30.0
_IDLE_S: Final = 10.0
# Up to here every integer has an exact float.
_EXACT: Final = 2.0**53


async def json_object(request: web.BaseRequest) -> dict[str, Any]:
    """Return the body's JSON object; an empty body is an empty object.

    Raises `Refused`: the body is too large (413), not JSON or not an object (400), or the request
    has an ``Expect`` header that is not supported (417).
    """
    text = await body_bytes(request)
    value = _parsed(text) if text.strip() else {}
    if not isinstance(value, dict):
        raise Refused(400, f"the body must be a JSON object, not {type(value).__name__}")
    return value


async def json_body(
    request: web.BaseRequest, form: "TypeAdapter[Any]", *, optional: bool = False
) -> Any:
    """Return the body as a value of ``form``; None if it is ``optional`` and missing.

    Raises `Refused`: as `json_object`; or the body has another content type (415) or form (400).
    """
    text = await body_bytes(request)
    if not text.strip():
        if optional:
            return None
        raise Refused(400, "the body is missing; expected JSON")
    if not _is_json(request.headers.get("Content-Type")):
        kind = request.content_type
        raise Refused(415, f"the body is {kind}; expected application/json")
    value = _parsed(text)
    try:
        # Through Python's parser, because its messages name the place, and without NaN.
        return form.validate_json(json.dumps(value, allow_nan=False), strict=True)
    except ValidationError as error:
        raise Refused(400, f"the body: {fault_text(error)}") from None
    except ValueError as error:
        raise Refused(400, f"the body: {error}") from None


async def body_bytes(
    request: web.BaseRequest, within_s: float = _WITHIN_S, idle_s: float = _IDLE_S
) -> bytes:
    """Return the bytes of the body.

    Raises `Refused`: 400, 413 and 417 as `json_object`; 408 if it is not complete in time, or no
    byte arrives for ``idle_s``.
    """
    await _invite(request)
    try:
        async with asyncio.timeout(within_s):
            return await _read(request, idle_s)
    except TimeoutError:
        raise _late(f"the body did not come within {within_s:g} s") from None
    except RequestPayloadError as error:
        raise Refused(400, f"the body cannot be read: {error}") from error


async def _read(request: web.BaseRequest, idle_s: float) -> bytes:
    body = bytearray()
    while True:
        try:
            async with asyncio.timeout(idle_s):
                came = await request.content.readany()
        except TimeoutError:
            raise _late(f"nothing of the body came for {idle_s:g} s") from None
        if not came:
            return bytes(body)
        body += came
        if len(body) > request.client_max_size:
            raise Refused(413, f"the body is longer than {request.client_max_size} bytes")


def _late(why: str) -> Refused:
    return Refused(408, why, {"Connection": "close"})


def _is_json(given: str | None) -> bool:
    """Return whether a content type is JSON; a missing one counts as JSON."""
    if given is None:
        return True
    kind = given.partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None


def _number(text: str) -> float:
    """Return a JSON number, as an int if it is integral: 7.0 is 7."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


async def _invite(request: web.BaseRequest) -> None:
    expected = request.headers.get("Expect")
    if expected is None or request.version != HttpVersion11:
        return
    if expected.lower() != "100-continue":
        raise Refused(417, f"cannot meet the expectation {expected!r}")
    writer = request.writer
    await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # The interim response does not count: errors after it must still be answered.
    writer.output_size = 0
