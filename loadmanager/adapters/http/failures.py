import math
import secrets
from collections.abc import Callable
from typing import Final

import structlog
from aiohttp import http_exceptions, web

from loadmanager.adapters.http.replies import Refused

_BAD_REQUEST: Final = 400
_TRACE_EVERY_S: Final = 60.0

log = structlog.get_logger()


def refusal_for(
    request: web.BaseRequest,
    status: int,
    error: BaseException | None,
    failures: "Failures",
    *,
    line_bytes: int,
    field_bytes: int,
) -> Refused:
    """Return the refusal for the client; an unexpected error is logged under an id.

    ``line_bytes`` and ``field_bytes`` are the parser's limits: only the limit in its error tells
    a long URL from a long header.
    """
    if status != _BAD_REQUEST or not isinstance(error, http_exceptions.HttpProcessingError):
        return _unexpected(request, status, error, failures)
    if isinstance(error, http_exceptions.LineTooLong):
        if error.args[1] == line_bytes:
            return Refused(414, f"the URL is longer than {line_bytes} bytes")
        return Refused(431, f"a header is longer than {field_bytes} bytes")
    if error.message == "Too many headers received":
        return Refused(431, "there are too many headers")
    first_line = error.message.partition("\n")[0].rstrip(": ")
    return Refused(400, f"the request is not valid HTTP: {first_line}")


def _unexpected(
    request: web.BaseRequest, status: int, error: BaseException | None, failures: "Failures"
) -> Refused:
    reason_id = secrets.token_hex(6)
    log.error(
        "http.request.failed",
        method=request.method,
        path=request.raw_path,
        reason_id=reason_id,
        error=repr(error),
        exc_info=failures.trace_of(error),
    )
    return Refused(status, f"an unexpected error; it is in the log under {reason_id}")


class Failures:
    def __init__(self, clock_s: Callable[[], float], count: Callable[[], None]) -> None:
        self._clock_s = clock_s
        self._count = count
        self._traced_at_s = -math.inf

    def trace_of(self, error: BaseException | None) -> BaseException | None:
        """Count a failure, and return it if its trace is to be logged, at most once a minute."""
        self._count()
        now_s = self._clock_s()
        if now_s - self._traced_at_s < _TRACE_EVERY_S:
            return None
        self._traced_at_s = now_s
        return error
