"""The asking side of the line to the leader's sidecar."""

import json
from collections.abc import Callable
from typing import Any

import aiohttp

from loadmanager.adapters.http.leading import ASSIGN_PATH
from loadmanager.adapters.http.security.tls import ClientTls
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import BrokerId, BundleId, parse_broker
from loadmanager.ports import LeaderInfo, NamespaceUnknown, NotLeader, Unavailable


class HttpLeaderLine:
    """`LeaderLine` over HTTP, with connections kept open between questions.

    Args:
        timeout_s: for a whole question; the leader may have to wait for a bundle that
            is under way.
        connect_timeout_s: for opening a connection: a dead host is found out soon.
        max_connections: questions asked at once; further ones wait for a turn, within
            their timeout.
        tls: for leaders that speak TLS, looked after before each question; None trusts
            whom the system trusts.
        token: returns what this sidecar proves its own name with, "" for nothing; may
            raise OSError.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 5.0,
        connect_timeout_s: float = 1.0,
        max_connections: int = 64,
        tls: ClientTls | None = None,
        token: Callable[[], str] = str,
    ) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_timeout_s)
        self._max_connections = max_connections
        self._tls = tls
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    async def assign(self, leader: LeaderInfo, bundle: BundleId) -> BrokerId:
        """Have the leader decide on ``bundle`` and return who is to own it.

        Raises:
            NotLeader: it does not lead, or answers as the leader of an older epoch.
            NamespaceUnknown: the bundle is in no namespace's boundaries.
            Unavailable: no broker can take the bundle, or the leader gave no answer
                that can be used.
        """
        url = leader.sidecar_url.rstrip("/") + ASSIGN_PATH
        try:
            status, retry_after, text = await self.ask("POST", url, {"bundle": bundle})
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            what = str(error) or type(error).__name__
            raise Unavailable(f"the leader at {leader.sidecar_url} does not answer: {what}") from (
                error
            )
        if status == 200:  # noqa: PLR2004 - HTTP
            return _decision(text, url, leader)
        raise _refusal(status, retry_after, text, url)

    async def close(self) -> None:
        """Give back connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def ask(
        self, method: str, url: str, value: dict[str, str] | None = None
    ) -> tuple[int, str, str]:
        """Return status, ``Retry-After`` and body of an answer.

        Raises:
            aiohttp.ClientError, OSError, ValueError: there is none.
        """
        if self._session is None:
            # Made late: a session belongs to the event loop it is made in.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._max_connections,
                    ssl=True if self._tls is None else self._tls.context,
                ),
                timeout=self._timeout,
            )
        if self._tls is not None:
            self._tls.refresh()
        token = self._token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # A leader never redirects; following one would ask somebody else.
        async with self._session.request(
            method, url, json=value, headers=headers, allow_redirects=False
        ) as response:
            return response.status, response.headers.get("Retry-After", ""), await response.text()


def _decision(text: str, url: str, leader: LeaderInfo) -> BrokerId:
    try:
        answer = json.loads(text)
        broker, epoch = parse_broker(answer["broker"]), int(answer["epoch"])
    except (ValueError, TypeError, KeyError, InvalidName):
        raise Unavailable(f"{url}: answered {text[:120]!r}; expected broker and epoch") from None
    if epoch < leader.epoch:
        raise NotLeader(f"{url}: answered for epoch {epoch}; the leader's is {leader.epoch}")
    return broker


def _refusal(
    status: int, retry_after: str, text: str, url: str
) -> NotLeader | NamespaceUnknown | Unavailable:
    reason = _reason(text)
    match status:
        case 404 if reason is not None:
            return NamespaceUnknown(reason)
        case 409:
            return NotLeader(reason or f"{url}: does not lead")
        case 503:
            wait_s = float(retry_after) if retry_after.isdecimal() else 1.0
            return Unavailable(reason or f"{url}: has no broker for the bundle", wait_s)
        case _:
            return Unavailable(f"{url}: answered {status}: {reason or text[:120]!r}")


def _reason(text: str) -> str | None:
    try:
        answer: Any = json.loads(text)
    except ValueError:
        return None
    reason = answer.get("reason") if isinstance(answer, dict) else None
    return reason if isinstance(reason, str) else None
