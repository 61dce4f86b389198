import json
from typing import Any, Final

from loadmanager.adapters.http.replies import raw_head
from loadmanager.ports.lookup import Readiness

_PATHS: Final = ("/healthz", "/readyz")


class HealthAnswers:
    """The last tick, and the responses to probes according to it.

    Ticks come from one thread and requests from another, so a tick is a single value that is
    replaced as a whole. Times are on the monotonic clock.
    """

    def __init__(self, stalled_after_s: float) -> None:
        self._stalled_after_s = stalled_after_s
        self._tick: tuple[float, Readiness] = (0.0, Readiness(ready=False))

    def tick(self, now_s: float, readiness: Readiness) -> None:
        self._tick = (now_s, readiness)

    def silent_s(self, now_s: float) -> float:
        return now_s - self._tick[0]

    def is_stalled(self, now_s: float) -> bool:
        return self.silent_s(now_s) > self._stalled_after_s

    def response_to(self, line: bytes, now_s: float) -> bytes:
        method, _, rest = line.decode("latin-1").partition(" ")
        target, _, version = rest.partition(" ")
        path = target.partition("?")[0]
        if not version.startswith("HTTP/1."):
            return _response(400, _refusal("the request is not valid HTTP"))
        if path not in _PATHS:
            return _response(404, _refusal(f"there is nothing here but {' and '.join(_PATHS)}"))
        if method not in {"GET", "HEAD"}:
            return _response(405, _refusal(f"{method} is not for this path"))
        status, body = self._answer(path, now_s)
        return _response(status, body, with_body=method == "GET")

    def _answer(self, path: str, now_s: float) -> tuple[int, bytes | dict[str, Any]]:
        readiness = self._tick[1]
        stalled = self.is_stalled(now_s)
        why = f"the event loop has not run for {self.silent_s(now_s):.0f} s"
        if path == "/healthz":
            return (503, _refusal(why)) if stalled else (200, b"ok")
        if stalled:
            readiness = Readiness(ready=False, reasons=(why, *readiness.reasons))
        return readiness_answer(readiness)


def readiness_answer(readiness: Readiness) -> tuple[int, dict[str, Any]]:
    document = {"troubles": list(readiness.troubles)} if readiness.troubles else {}
    if readiness.ready:
        return 200, {"ready": True, "reasons": [], **document}
    reasons = list(readiness.reasons)
    reason = "; ".join(reasons) or "not ready"
    return 503, {"ready": False, "reasons": reasons, "reason": reason, **document}


def _refusal(reason: str) -> dict[str, Any]:
    return {"reason": reason}


def _response(status: int, body: bytes | dict[str, Any], *, with_body: bool = True) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    kind = "text/plain; charset=utf-8" if isinstance(body, bytes) else "application/json"
    return raw_head(status, kind, len(text)) + (text if with_body else b"")
