"""Requests to the admin REST of Pulsar's brokers, bounded in time and size.

Each request goes to a broker's own address. Redirects are followed only to brokers of the
cluster, because the token is sent along, and never from TLS to plain HTTP.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal
from urllib.parse import urljoin, urlsplit

import aiohttp
from pydantic import BaseModel, Field
from pydantic_core import from_json

from loadmanager.adapters.http.security.tls import ClientTls
from loadmanager.core.errors import LoadManagerError


class PulsarAdminError(LoadManagerError):
    """A request to a broker's admin REST failed; the message says where and why."""


class RightMissing(PulsarAdminError):
    """401 or 403: the token or certificate is missing, expired, or lacks the permission."""


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
MOST_VALUES: Final = 3_000_000
MOST_LINE_BYTES: Final = 1024 * 1024
MOST_METRICS_BYTES: Final = 2 * 1024 * 1024 * 1024
_CHUNK_BYTES: Final = 256 * 1024
_UNTRIED: Final = (0.0, 0.0, "it is not tried yet, as many brokers cannot be connected to")
_PROBED_AT_ONCE: Final = 512
# What answers it, however, or ends the connection, is alive.
_PROBE: Final = b"GET / HTTP/1.0\r\n\r\n"
_LONGEST_DEAD_S: Final = 300.0
_OUR_FAULTS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL})
_MOST_REDIRECTS: Final = 5
_MOST_REASON: Final = 200
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_RIGHTS: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_DONE: Final = frozenset({HTTPStatus.OK, HTTPStatus.NO_CONTENT})
_MOST_SHOWN: Final = 60
_NO_HTTP: Final = "on a port with TLS, expected https://, with a client certificate if required"

Method = Literal["GET", "PUT", "POST", "DELETE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Credentials and timeouts of requests to brokers.

    The token's file is read at each request. Metrics may have hundreds of megabytes, and an unload
    is answered after all topics are closed: both have a timeout of their own. ``addresses`` are
    ``host:port`` or URLs that an operator names for the ``host:port`` of brokers.
    """

    token_file: Path | None = None
    oauth2: "ClientCredentials | None" = None
    tls: ssl.SSLContext | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)
    connect_timeout_s: float = 3.0
    timeout_s: float = 10.0
    metrics_timeout_s: float = 60.0
    change_timeout_s: float = 660.0

    @property
    def secret(self) -> bool:
        return self.token_file is not None or self.oauth2 is not None


@dataclass(slots=True)
class Cost:
    requests: int = 0
    answer_bytes: int = 0


@dataclass(slots=True)
class PulsarAdmin:
    """Sends requests to brokers.

    ``known`` are the ``host:port`` of brokers that redirects may lead to. ``reached`` are the URLs
    of brokers as lookups name them, by the ``host:port`` in URLs of requests and redirects. Where
    the cluster ``encrypts``, a token is sent without TLS only to what an operator has named for it.
    ``missing_until_s`` are URLs without content, with the time until which they are not read again.
    ``_failed`` addresses are not asked until the next `probe`: when each is due, since when it
    does not answer, and why. The last one did not try ``deferred`` ones. That of a sidecar's
    ``own`` broker is asked whatever a probe found: nobody may probe it again.
    """

    access: Access
    known: Collection[str] = ()
    reached: dict[str, str] = field(default_factory=dict)
    encrypts: bool = False
    own: str = ""
    missing_until_s: dict[str, float] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)
    _session: aiohttp.ClientSession | None = None
    _alive: set[str] = field(default_factory=set)
    _failed: dict[str, tuple[float, float, str]] = field(default_factory=dict)
    deferred: set[str] = field(default_factory=set)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def probe(self, urls: Iterable[str], *, every: bool = False) -> None:
        """Ask addresses not known to be alive; those that do not answer are not asked meanwhile.

        The longer one has failed, the later it is tried again, within five minutes, 512 at a time;
        unless ``every`` one is to be tried, also those known to be alive.
        """
        if every:
            self._alive.clear()
        found = {urlsplit(url).netloc: url for url in map(self.reachable, urls)}
        failed = {name: self._failed.get(name, _UNTRIED) for name in found.keys() - self._alive}
        due = sorted(failed, key=failed.__getitem__)
        if not every:
            due = [one for one in due if failed[one][0] <= monotonic()][:_PROBED_AT_ONCE]
        self.deferred = failed.keys() - due
        at_once = asyncio.Semaphore(_PROBED_AT_ONCE)

        async def connect(name: str) -> None:
            since_s, parts = failed[name][1] or monotonic(), urlsplit(found[name])
            try:
                port = parts.port or (443 if parts.scheme == "https" else 80)
                async with at_once:
                    async with asyncio.timeout(self.access.connect_timeout_s):
                        reader, writer = await asyncio.open_connection(parts.hostname, port)
                    with closing(writer), suppress(ConnectionError):
                        writer.write(_PROBE)
                        async with asyncio.timeout(self.access.timeout_s):
                            await reader.read(1)
                self._alive.add(name)
            except (OSError, ValueError) as error:
                now_s, ours = monotonic(), getattr(error, "errno", None) in _OUR_FAULTS
                due_s = now_s + (0.0 if ours else min(now_s - since_s, _LONGEST_DEAD_S))
                failed[name] = due_s, now_s if ours else since_s, why_unreachable(error)

        await asyncio.gather(*map(connect, due))
        self._failed = {name: one for name, one in failed.items() if name not in self._alive}

    async def waited(self, since_s: float, urls: Iterable[str]) -> bool:
        """Probe every one if an answer was awaited in vain, so that no other is, one by one."""
        if silent := monotonic() - since_s >= self.access.timeout_s:
            await self.probe(urls, every=True)
        return silent

    async def json(
        self,
        url: str,
        kind: type = object,
        expected: str = "the JSON of a Pulsar broker",
        *,
        absent: Collection[int] = (),
        instead: str = "{}",
    ) -> Any:
        """Return the JSON at ``url``, or ``instead`` if the answer's status is one of ``absent``.

        Raises `Unanswered`, `RightMissing`, `AnswerRefused`, `NotPulsar`: it is not ``expected``.
        """
        text = await self.text(url, absent, instead)
        with suppress(ValueError):
            # At most 200 levels deep; no NaN, and no half of a character.
            found = from_json(text, allow_inf_nan=False)
            if isinstance(found, kind):
                return found
        raise NotPulsar(f"{url}: answered {shown(text)}; expected {expected}")

    async def text(self, url: str, absent: Collection[int] = (), instead: str = "") -> str:
        """Return the text at ``url``, or ``instead``; raises as `json`, whatever the text."""
        try:
            async with self._answer(url, self.access.timeout_s) as answer:
                parts = [one async for one in self._chunks(url, answer, MOST_JSON_BYTES)]
        except AnswerRefused as error:
            if error.status in absent:
                return instead
            raise
        text = b"".join(parts).decode("utf-8", errors="replace")
        # The tiniest values take a hundred times their length, and longest to parse.
        if sum(map(text.count, ",[{")) > MOST_VALUES:
            raise NotPulsar(f"{url}: over {MOST_VALUES:,} values; expected fewer")
        return text

    async def lines(self, url: str) -> AsyncIterator[bytes]:
        """Yield blocks of whole lines of the text at ``url``; raises as `text`."""
        rest = b""
        async with self._answer(url, self.access.metrics_timeout_s) as answer:
            async for chunk in self._chunks(url, answer, MOST_METRICS_BYTES):
                block = rest + chunk
                end = block.rfind(b"\n") + 1
                rest = block[end:]
                if len(rest) > MOST_LINE_BYTES:
                    raise NotPulsar(f"{url}: a line has over {MOST_LINE_BYTES:,} bytes")
                if end:
                    yield block[:end]
        if rest:
            yield rest + b"\n"

    async def change(
        self, method: Method, url: str, body: str = "", *, timeout_s: float = 0.0
    ) -> None:
        """Send a change, without ``timeout_s`` an unload. If `Unanswered` it may have been made."""
        async with self._answer(url, timeout_s or self.access.change_timeout_s, method, body):
            pass

    @asynccontextmanager
    async def _answer(
        self, url: str, timeout_s: float, method: Method = "GET", body: str = ""
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        own, url, renewed = urlsplit(url).netloc == self.own, self.reachable(url), False
        headers = {"Accept-Encoding": "gzip"}
        if method != "GET":
            headers["Content-Type"] = "application/json"
        for _ in range(_MOST_REDIRECTS + 1):
            token = await self._token()
            if token:
                headers["Authorization"] = f"Bearer {token}"
            plain = self.encrypts and url.startswith("http:")
            if token and plain and urlsplit(url).netloc not in self.access.addresses:
                raise RequestFailed(f"{url}: no port with TLS is known, as this cluster has them")
            if (name := urlsplit(url).netloc) in self._failed and not own:
                raise Unanswered(f"{url}: {self._failed[name][2]}")
            self._alive.discard(name)
            with answer_of(url, timeout_s):
                async with (
                    asyncio.timeout(timeout_s),
                    self._connected().request(
                        method, url, data=body or None, headers=headers, allow_redirects=False
                    ) as answer,
                ):
                    self._alive.add(name)
                    self.cost.requests += 1
                    oauth2 = self.access.oauth2
                    if answer.status == HTTPStatus.UNAUTHORIZED and oauth2 and not renewed:
                        oauth2.refused(token)
                        renewed = True
                        continue
                    if answer.status not in _REDIRECTS:
                        await self._check(url, answer, method)
                        yield answer
                        return
                    url = self._redirect(url, answer.headers.get("Location", ""))
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
        said = shown(said or answer.reason or "", most=_MOST_REASON)
        why = f"{url}: answered {answer.status} ({said})"
        if answer.status in _RIGHTS:
            right = f"the right to {'read' if method == 'GET' else 'change'} it"
            raise RightMissing(f"{why}; expected a token or certificate with {right}")
        raise AnswerRefused(why, answer.status)

    def _redirect(self, url: str, location: str) -> str:
        """Raises `AnswerRefused`: it is no broker of the cluster, and gets no token."""
        here = urlsplit(url)
        target = urljoin(url, location)
        netloc = urlsplit(target).netloc
        names = {here.netloc, *self.known, *self.reached, *self.access.addresses}
        known = netloc in names and target.isprintable()
        target = self.reachable(target)
        if not location or not known or urlsplit(target).scheme not in {here.scheme, "https"}:
            raise AnswerRefused(
                f"{url}: redirects to {printable(location) or 'nowhere'}, which is no broker of "
                "this cluster; if a proxy stands before the brokers, name a broker itself"
            )
        return target

    def reachable(self, url: str) -> str:
        for names in (self.access.addresses, self.reached, self.access.addresses):
            scheme, _, rest = url.partition("://")
            netloc, slash, path = rest.partition("/")
            found = names.get(netloc)
            if found is not None:
                base = found if "://" in found else f"{scheme}://{found}"
                url = f"{base}{slash}{path}"
                if names is self.access.addresses:
                    break
        return url

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            connect_s, tls = self.access.connect_timeout_s, self.access.tls or True
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
                connector=aiohttp.TCPConnector(limit=64, limit_per_host=4, ssl=tls),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def _token(self) -> str:
        """Return the token to send, "" for none. Raises `RightMissing`: there is none now."""
        access = self.access
        if access.oauth2 is not None:
            return await access.oauth2.token(self._connected(), access.timeout_s)
        if access.token_file is None:
            return ""
        try:
            token, why = access.token_file.read_text(encoding="ascii").strip(), "no token"
        except (OSError, UnicodeDecodeError) as error:
            token, why = "", str(error.strerror if isinstance(error, OSError) else "no ASCII")
        if not token or not token.isprintable():
            raise RightMissing(f"{access.token_file}: {why}; expected a file with a token")
        return token


def confidential(url: str) -> bool:
    """Return whether a secret that is sent there stays so: with TLS, or on this host."""
    try:
        parts = urlsplit(url)
        local = parts.hostname == "localhost" or ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return url.startswith("https://")
    return parts.scheme == "https" or (parts.scheme == "http" and local)


@contextmanager
def answer_of(where: str, timeout_s: float = 0.0) -> Iterator[None]:
    """Raise a `RequestFailed` for whatever an answer raises while it is read and understood."""
    try:
        yield
    except LoadManagerError:
        raise
    except TimeoutError:
        when = f"within {timeout_s:g} s" if timeout_s else "in time"
        raise Unanswered(f"{printable(where)}: no answer {when}") from None
    except aiohttp.ClientResponseError:
        raise NotPulsar(f"{printable(where)}: does not answer in HTTP; {_NO_HTTP}") from None
    except aiohttp.ClientError as error:
        raise Unanswered(f"{printable(where)}: {why_failed(error)}") from None
    except Exception as error:
        why = printable(f"{type(error).__name__}: {error}"[:_MOST_REASON])
        raise NotPulsar(
            f"{printable(where)}: unusable ({why}); expected the answer of a Pulsar broker"
        ) from error


def printable(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in " ".join(text.split()))


def shown(text: str, most: int = _MOST_SHOWN) -> str:
    if text.lstrip().startswith("<"):
        return "a page of HTML, as a proxy or another service does: name a broker itself"
    return printable(text[:most]) or "nothing"


def why_unreachable(error: OSError | ValueError) -> str:
    code = getattr(error, "errno", None) or 0
    text = os.strerror(code) if code in errno.errorcode else getattr(error, "strerror", None)
    if isinstance(error, socket.gaierror):
        return (
            f"cannot find the host ({error.strerror}); expected a name that is known here, or "
            "--address for brokers that are named for the inside of their network"
        )
    return f"cannot connect ({text or 'no answer'}); expected a broker's web service there"


def why_failed(error: aiohttp.ClientError) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError(certificate_error=wrong):
            why = (
                f"certificate verify failed ({getattr(wrong, 'verify_message', wrong)}); expected "
                "a certificate for this host name, of an authority in the CA file or of the system"
            )
        case aiohttp.ClientConnectorSSLError():
            why = "does not answer in TLS; expected the port of webServicePortTls, or http://"
        case aiohttp.ClientConnectorError():
            why = why_unreachable(error.os_error)
        case aiohttp.InvalidURL():
            why = "no valid URL; expected http:// or https:// with host and port"
        case aiohttp.ClientPayloadError():
            why = "the answer ended before it was complete"
        case _:
            why = f"closed the connection without an answer; {_NO_HTTP}"
    return why


FILES: Final = ("ca_file", "certificate_file", "key_file", "oauth2_key_file", "token_file")
OAUTH2: Final = ("issuer_url", "audience", "scope")
_WELL_KNOWN: Final = "/.well-known/openid-configuration"
_MOST_BYTES: Final = 256 * 1024
_UNSTATED_S: Final = 300.0
_EARLY_S: Final = 60.0
_EARLY_SHARE: Final = 0.1
_AGAIN_S: Final = 5.0


class _Key(BaseModel):
    client_id: str = Field(min_length=1)
    client_secret: str = Field(min_length=1)
    issuer_url: str = ""


@dataclass(slots=True, kw_only=True)
class ClientCredentials:
    """Requests tokens by the file that Pulsar's clients call ``privateKey``, and keeps the last.

    The file is read for each new token. One is renewed a minute before it expires, or a tenth of
    its life if that is less, and serves until then while the issuer does not answer.
    """

    key_file: Path
    issuer_url: str = ""
    audience: str = ""
    scope: str = ""
    _token: str = field(default="", init=False, repr=False)
    _renew_s: float = field(default=float("-inf"), init=False)
    _expires_s: float = field(default=float("-inf"), init=False)
    _renewing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def refused(self, token: str) -> None:
        if token == self._token:
            self._token = ""

    async def token(self, session: aiohttp.ClientSession, timeout_s: float) -> str:
        """Raises `RightMissing`: the issuer refuses; `RequestFailed`: it does not answer."""
        async with self._renewing:
            if not self._token or monotonic() >= self._renew_s:
                try:
                    async with asyncio.timeout(timeout_s):
                        await self._renew(session)
                except (TimeoutError, RequestFailed) as error:
                    if not self._token or monotonic() >= self._expires_s:
                        why = str(error) or f"no token within {timeout_s:g} s"
                        raise RequestFailed(f"OAuth2 by {self.key_file}: {why}") from None
                    self._renew_s = monotonic() + _AGAIN_S
            return self._token

    async def _renew(self, session: aiohttp.ClientSession) -> None:
        try:
            key = _Key.model_validate_json(self.key_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise RightMissing(
                f"{self.key_file}: expected a JSON file with client_id, client_secret and "
                "issuer_url, as Pulsar's clients read it"
            ) from None
        issuer = (self.issuer_url or key.issuer_url).rstrip("/")
        found = await _asked(session, "GET", f"{issuer}{_WELL_KNOWN}", {})
        endpoint, began_s = str(found.get("token_endpoint") or ""), monotonic()
        form = {
            "grant_type": "client_credentials",
            **{name: getattr(key, name) for name in ("client_id", "client_secret")},
            **{name: text for name in ("audience", "scope") if (text := getattr(self, name))},
        }
        answer = await _asked(session, "POST", endpoint, form)
        token = answer.get("access_token")
        if not (isinstance(token, str) and token and token.isascii() and token.isprintable()):
            raise RequestFailed(f"{endpoint}: no access_token; expected the answer of an issuer")
        life_s = answer.get("expires_in")
        if not isinstance(life_s, int | float) or not 0 < life_s < float("inf"):
            life_s = _UNSTATED_S
        self._token = token
        self._expires_s = began_s + life_s
        self._renew_s = self._expires_s - min(_EARLY_S, _EARLY_SHARE * life_s)


async def _asked(
    session: aiohttp.ClientSession, method: str, url: str, form: dict[str, str]
) -> dict[str, Any]:
    if not confidential(url):
        where = printable(url) or "no URL"
        raise RightMissing(f"{where}: expected https:// for an OAuth2 issuer")
    with answer_of(url):
        asking = session.request(method, url, data=form or None, allow_redirects=False)
        async with asking as answer:
            text = bytearray()
            async for chunk in answer.content.iter_any():
                text += chunk
                if len(text) > _MOST_BYTES:
                    raise RequestFailed(f"{url}: the answer has over {_MOST_BYTES:,} bytes")
    found = None
    with suppress(ValueError):
        found = from_json(text, allow_inf_nan=False)
    if answer.status in {HTTPStatus.BAD_REQUEST, *_RIGHTS}:
        raise RightMissing(f"{url}: answered {answer.status}; expected the client to be known")
    if answer.status != HTTPStatus.OK or not isinstance(found, dict):
        raise RequestFailed(f"{url}: answered {answer.status}; expected that of an OAuth2 issuer")
    return found


def access_of(settings: Mapping[str, Any], addresses: Mapping[str, str]) -> Access:
    path = {name: Path(settings[name]) if settings[name] else None for name in FILES}
    *tls, oauth2_key, token = path.values()
    oauth2 = None
    if oauth2_key is not None:
        texts = {name: settings[f"oauth2_{name}"] or "" for name in OAUTH2}
        oauth2 = ClientCredentials(key_file=oauth2_key, **texts)
    context = ClientTls(*tls).context if any(tls) else None
    return Access(token_file=token, oauth2=oauth2, tls=context, addresses=addresses)
