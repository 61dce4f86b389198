"""Requests of the live page that only the leader can answer: forwarded, never redirected."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from loadmanager.adapters.http.assign_client import HttpAssignClient, Proof
from loadmanager.adapters.http.replies import Refused, bytes_reply, unavailable
from loadmanager.adapters.http.security.guard import PASSED_ON_HEADER

FORWARD_HEADER: Final = "X-Loadmanager-Forward"
"""Requests forwarding; browsers let no page of another site send such a header."""

_MOST_BYTES: Final = 4_194_304
_WITHIN_S: Final = 45.0
_RETRY_AFTER_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Forwarder:
    """Forwards requests to the leader's sidecar with the caller's own credentials.

    ``withheld`` returns why no token is sent to the sidecar at a URL, "" if one may be.
    """

    line: HttpAssignClient
    withheld: Callable[[str], str]

    def wanted(self, request: web.BaseRequest, refused: Refused) -> bool:
        return (
            FORWARD_HEADER in request.headers
            and bool(refused.headers.get("Location"))
            and refused.status == 307  # noqa: PLR2004 - HTTP
        )

    async def forward(self, request: web.BaseRequest, refused: Refused) -> web.StreamResponse:
        if request.body_exists:
            raise Refused(400, f"{FORWARD_HEADER}: the request has a body; expected none")
        url, path = _divided(refused.headers["Location"])
        answer = await self.line.ask(
            request.method,
            url,
            path,
            most_bytes=_MOST_BYTES,
            proof=self._proof(request, refused, url),
            within_s=_WITHIN_S,
        )
        if 300 <= answer.status < 400:  # noqa: PLR2004 - HTTP: it no longer leads
            raise unavailable(f"{url} does not lead any more", _RETRY_AFTER_S)
        headers = {"Retry-After": answer.retry_after} if answer.retry_after else {}
        return bytes_reply(
            answer.text.encode(), "application/json", answer.status, {**headers, **_NO_STORE}
        )

    def _proof(self, request: web.BaseRequest, refused: Refused, url: str) -> Proof:
        passed_on = refused.headers.get(PASSED_ON_HEADER)
        if passed_on:
            return Proof(passed_on)
        scheme, _, token = request.headers.get("Authorization", "").strip().partition(" ")
        if scheme.lower() != "bearer" or not token:
            return Proof()
        withheld = self.withheld(url)
        return Proof(withheld=withheld) if withheld else Proof(token.strip())


_NO_STORE: Final = {"Cache-Control": "no-store"}


def _divided(location: str) -> tuple[str, str]:
    scheme, _, rest = location.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority}", slash + path
