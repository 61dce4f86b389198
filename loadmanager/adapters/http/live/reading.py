"""What the events of the live page say: the overview of this process, or of the leader's."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp
import structlog
from pydantic import BaseModel

from loadmanager.adapters.http.assign_client import Answer, told_refusal
from loadmanager.core.errors import LoadManagerError
from loadmanager.ports import LeaderElsewhere, Unavailable

log = structlog.get_logger()

OVERVIEW_PATH: Final = "/admin/v2/loadmanager/overview"
_MOST_BYTES: Final = 2_097_152
_OK: Final = 200


class LeaderLine(Protocol):
    """How the leader's sidecar is asked."""

    async def ask(self, method: str, sidecar_url: str, path: str, *, most_bytes: int) -> Answer:
        """Return what the sidecar at a URL answers under a path."""


@dataclass(frozen=True, slots=True)
class OverviewReader:
    """Reads the overview, and puts it into one event.

    ``read`` returns it as a document, or raises `LeaderElsewhere` and the like. ``served_by`` is
    who answers the page; ``line`` asks the leader's sidecar where that is another one.
    """

    read: Callable[[], BaseModel]
    served_by: str
    line: LeaderLine | None = None

    async def __call__(self) -> bytes:
        """Return the event: the overview, or why there is none."""
        try:
            told = await self._overview()
        except (LoadManagerError, aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return self._event("trouble", {"reason": str(error) or type(error).__name__})
        except Exception as error:
            log.exception("page.overview.failed", error=str(error))
            return self._event("trouble", {"reason": f"unexpected: {error!r}"})
        return self._event("overview", {"overview": told})

    def _event(self, kind: str, value: dict[str, Any]) -> bytes:
        text = json.dumps({"servedBy": self.served_by, **value}, separators=(",", ":"))
        return f"event: {kind}\ndata: {text}\n\n".encode()

    async def _overview(self) -> dict[str, Any]:
        try:
            return self.read().model_dump(mode="json", by_alias=True)
        except LeaderElsewhere as error:
            if self.line is None:
                raise
            url = error.sidecar_url
        answer = await self.line.ask("GET", url, OVERVIEW_PATH, most_bytes=_MOST_BYTES)
        if answer.status != _OK:
            raise Unavailable(told_refusal(url.rstrip("/") + OVERVIEW_PATH, answer))
        told = json.loads(answer.text)
        if not isinstance(told, dict):
            raise Unavailable(f"{url}: answered {answer.text[:80]!r}; expected an overview")
        return told
