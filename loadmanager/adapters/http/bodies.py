"""Reading JSON bodies from requests, with a clear refusal for each way they can be wrong."""

import json
from typing import Any

from aiohttp import web
from aiohttp.http import HttpVersion11
from aiohttp.web import RequestPayloadError

from loadmanager.adapters.http.replies import Refused


async def json_object(request: web.BaseRequest) -> dict[str, Any]:
    """Return the body's JSON object; an empty body is an empty object.

    Raises:
        Refused: the body is too large (413), not JSON or no object (400), or the client
            expects something of us that we do not do (417).
    """
    await _invite(request)
    try:
        text = await request.read()
    except web.HTTPRequestEntityTooLarge:
        limit = request.client_max_size
        raise Refused(413, f"the body is longer than {limit} bytes") from None
    except RequestPayloadError as error:
        raise Refused(400, f"the body cannot be read: {error}") from error
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refused(400, f"the body must be a JSON object, not {type(value).__name__}")
    return value


async def _invite(request: web.BaseRequest) -> None:
    """Tell a client that waits for it to send its body."""
    expected = request.headers.get("Expect")
    if expected is None or request.version != HttpVersion11:
        return
    if expected.lower() != "100-continue":
        raise Refused(417, f"cannot meet the expectation {expected!r}")
    writer = request.writer
    await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # The interim response is none: errors after it still get a response of their own.
    writer.output_size = 0
