import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final, cast

from loadmanager.adapters.coordination.link import Link
from loadmanager.ports.coordination import (
    CommitRejected,
    CoordinationError,
    Disconnected,
    NodeExists,
    NodeMissing,
    NotEmpty,
    SessionLost,
    VersionMismatch,
)

Observe = Callable[[str, str, float], None]
"""Called for each request with its kind, its result and its duration in seconds."""

RESULTS: Final[dict[type[CoordinationError], str]] = {
    NodeMissing: "node_missing",
    NodeExists: "node_exists",
    VersionMismatch: "version_mismatch",
    NotEmpty: "not_empty",
    Disconnected: "disconnected",
    SessionLost: "session_lost",
    CommitRejected: "commit_rejected",
}
"""The results of requests besides ``ok`` and ``failed``, by error."""


_REQUESTS: Final = [
    "get",
    "exists",
    "children",
    "rearm",
    "sync",
    "heartbeat",
    "create",
    "set",
    "delete",
    "commit",
]


def counted(link: Link, observe: Observe, clock_s: Callable[[], float] = time.monotonic) -> Link:
    def counting(kind: str) -> Callable[..., Awaitable[Any]]:
        send = getattr(link, kind)

        async def request(*arguments: Any, **named: Any) -> Any:
            asked_at_s = clock_s()
            result = "failed"
            try:
                answer = await send(*arguments, **named)
                result = "ok"
            except CoordinationError as error:
                result = RESULTS.get(type(error), result)
                raise
            finally:
                observe(kind, result, clock_s() - asked_at_s)
            return answer

        return request

    requests = {kind: counting(kind) for kind in _REQUESTS}
    return cast("Link", SimpleNamespace(open=link.open, close=link.close, **requests))
