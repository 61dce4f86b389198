"""Requests to the admin REST of Pulsar's brokers, bounded in time and size.

Each request goes to a broker's own address. Redirects are followed only to brokers of the
cluster, because the token is sent along.
"""

import asyncio
import errno
import json
import os
import ssl
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urljoin, urlsplit

import aiohttp

from loadmanager.core.errors import LoadManagerError


class PulsarAdminError(LoadManagerError):
    """A request to a broker's admin REST failed; the message says where and why."""


class RightMissing(PulsarAdminError):
    """401 or 403: the token or certificate is missing, expired, or lacks the permission.

    Any further request would get the same answer.
    """


class RequestFailed(PulsarAdminError):
    """One request failed for another reason; other requests may succeed."""


class Unanswered(RequestFailed):
    """No answer came in time, or the connection failed: the broker may be down."""


class AnswerRefused(RequestFailed):
    """A status other than 200, or an answer that is too long."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotPulsar(RequestFailed):
    """The answer is not in the form of a Pulsar broker's."""


MOST_JSON_BYTES: Final = 64 * 1024 * 1024
MOST_METRICS_BYTES: Final = 2 * 1024 * 1024 * 1024
_CHUNK_BYTES: Final = 256 * 1024
_MOST_REDIRECTS: Final = 5
_MOST_REASON: Final = 200
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_RIGHTS: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_DONE: Final = frozenset({HTTPStatus.OK, HTTPStatus.NO_CONTENT})

Method = Literal["GET", "PUT", "POST", "DELETE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Credentials and timeouts of requests to brokers.

    The token's file is read at each request. Without ``tls`` the authorities of the system are
    trusted. Metrics may have hundreds of megabytes, and a broker answers an unload after closing
    all topics of a bundle, so both have a timeout of their own.
    """

    token_file: Path | None = None
    tls: ssl.SSLContext | None = None
    connect_timeout_s: float = 3.0
    timeout_s: float = 10.0
    metrics_timeout_s: float = 60.0
    change_timeout_s: float = 660.0


@dataclass(slots=True)
class Cost:
    requests: int = 0
    answer_bytes: int = 0


@dataclass(slots=True)
class PulsarAdmin:
    """Sends requests to brokers; one object for a whole run, to be closed at its end.

    ``known`` are the ``host:port`` of brokers that redirects may lead to, ``missing_until_s`` URLs
    without content, with the time until which they are not read again.
    """

    access: Access
    known: Collection[str] = ()
    missing_until_s: dict[str, float] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)
    _session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def json(self, url: str, *, absent: Collection[int] = (), instead: Any = None) -> Any:
        """Return the JSON at ``url``, or ``instead`` if the answer's status is one of ``absent``.

        Raises `Unanswered`: no answer comes in time; `RightMissing`: 401 or 403; `AnswerRefused`: a
        status other than 200, or an answer that is too long; `NotPulsar`: the answer is not JSON.
        """
        try:
            text = await self.text(url)
        except AnswerRefused as error:
            if error.status in absent:
                return instead
            raise
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise NotPulsar(
                f"{url}: answered {text[:60]!r}; expected the JSON of a Pulsar broker"
            ) from None

    async def text(self, url: str) -> str:
        """Return the text at ``url``; raises as `json`, whatever the text."""
        parts = bytearray()
        async with self._answer(url, self.access.timeout_s) as answer:
            async for chunk in self._chunks(url, answer, MOST_JSON_BYTES):
                parts += chunk
        return parts.decode("utf-8", errors="replace")

    async def lines(self, url: str) -> AsyncIterator[bytes]:
        """Yield blocks of whole lines of the text at ``url``; raises as `text`."""
        rest = b""
        async with self._answer(url, self.access.metrics_timeout_s) as answer:
            async for chunk in self._chunks(url, answer, MOST_METRICS_BYTES):
                block = rest + chunk
                end = block.rfind(b"\n") + 1
                rest = block[end:]
                if len(rest) > MOST_JSON_BYTES:
                    raise NotPulsar(f"{url}: a line has over {MOST_JSON_BYTES:,} bytes")
                if end:
                    yield block[:end]
        if rest:
            yield rest + b"\n"

    async def change(
        self,
        method: Literal["PUT", "POST", "DELETE"],
        url: str,
        body: str = "",
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Send a change, with a body of JSON or none; without ``timeout_s`` it is an unload.

        A redirect to the broker that has to make the change is followed.

        Raises:
            Unanswered: no answer comes in time; the change may have been made nevertheless.
            RightMissing: 401 or 403.
            AnswerRefused: a status other than 200 or 204.
        """
        async with self._answer(url, timeout_s or self.access.change_timeout_s, method, body):
            pass

    @asynccontextmanager
    async def _answer(
        self, url: str, timeout_s: float, method: Method = "GET", body: str = ""
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        for _ in range(_MOST_REDIRECTS + 1):
            try:
                async with asyncio.timeout(timeout_s):
                    async with self._connected().request(
                        method,
                        url,
                        data=body or None,
                        headers=self._headers(method),
                        allow_redirects=False,
                        ssl=self.access.tls or True,
                    ) as answer:
                        self.cost.requests += 1
                        if answer.status not in _REDIRECTS:
                            await self._check(url, answer, method)
                            yield answer
                            return
                        url = self._redirect(url, answer.headers.get("Location", ""))
            except TimeoutError:
                raise Unanswered(f"{url}: no answer within {timeout_s:g} s") from None
            except aiohttp.ClientResponseError as error:
                raise NotPulsar(f"{url}: not valid HTTP ({error.message})") from None
            # The error number of a refused certificate is that of TLS, not an errno.
            except aiohttp.ClientSSLError as error:
                raise Unanswered(f"{url}: {error}") from None
            except aiohttp.ClientConnectorError as error:
                # aiohttp's own text mentions "ssl:default" even for plain HTTP.
                code, text = error.errno or 0, error.strerror
                why = os.strerror(code) if code in errno.errorcode else text
                raise Unanswered(
                    f"{url}: cannot connect ({why}); expected a broker's web service there"
                ) from None
            except aiohttp.ClientError as error:
                raise Unanswered(f"{url}: {error}") from None
        raise AnswerRefused(f"{url}: more than {_MOST_REDIRECTS} redirects")

    async def _chunks(
        self, url: str, answer: aiohttp.ClientResponse, most: int
    ) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
            size += len(chunk)
            self.cost.answer_bytes += len(chunk)
            if size > most:
                raise AnswerRefused(f"{url}: the answer has over {most:,} bytes")
            yield chunk

    async def _check(self, url: str, answer: aiohttp.ClientResponse, method: Method) -> None:
        if answer.status == HTTPStatus.OK or (method != "GET" and answer.status in _DONE):
            return
        said = (await answer.content.read(_MOST_REASON)).decode("utf-8", errors="replace")
        why = f"{url}: answered {answer.status} ({' '.join(said.split()) or answer.reason})"
        if answer.status in _RIGHTS:
            what = "read" if method == "GET" else "change"
            raise RightMissing(
                f"{why}; expected a token or certificate with the right to {what} it"
            )
        raise AnswerRefused(why, answer.status)

    def _redirect(self, url: str, location: str) -> str:
        """Raises `AnswerRefused`: it is no broker of the cluster, and gets no token."""
        target = urljoin(url, location)
        here, there = urlsplit(url), urlsplit(target)
        known = there.netloc == here.netloc or there.netloc in self.known
        if not location or not known or there.scheme not in {here.scheme, "https"}:
            raise AnswerRefused(
                f"{url}: redirects to {location or 'nowhere'}, which is no broker of this cluster; "
                "if a proxy stands before the brokers, name a broker itself"
            )
        return target

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self.access.connect_timeout_s
                ),
                connector=aiohttp.TCPConnector(limit=64, limit_per_host=4),
            )
        return self._session

    def _headers(self, method: Method) -> dict[str, str]:
        headers = {"Accept-Encoding": "gzip"}
        if method != "GET":
            headers["Content-Type"] = "application/json"
        if self.access.token_file is not None:
            try:
                token = self.access.token_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                raise RightMissing(
                    f"{self.access.token_file}: {why}; expected a file with a token"
                ) from None
            headers["Authorization"] = f"Bearer {token}"
        return headers
