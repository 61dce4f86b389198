import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from aiohttp import web
from yarl import URL

from loadmanager.adapters.http.operations import json_object
from loadmanager.adapters.http.routes import Refused, Role, Route, Target, json_reply
from loadmanager.adapters.http.security.tls import ClientTls
from loadmanager.core.bounds import EPOCH
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.fields import Fields, parse_fields
from loadmanager.core.ids import (
    BrokerId,
    BundleId,
    Namespace,
    TopicName,
    parse_broker,
    parse_bundle,
    parse_full_topic,
)
from loadmanager.core.rates import Rates
from loadmanager.core.wire.records import LeaderRecord
from loadmanager.core.wire.shared_forms import rates_from, rates_to_json
from loadmanager.ports.lookup import (
    LookupService,
    NamespaceUnknown,
    NotLeader,
    Unavailable,
)

_MOST_BYTES_OF_A_DECISION: Final = 65_536
TOPICS_PATH: Final = "/admin/v2/broker-stats/topics"
# Some 400,000 topics of one broker.
_MOST_BYTES_OF_TOPICS: Final = 64 * 1024 * 1024
_SECONDS: Final = re.compile(r"[0-9]{1,4}")


ASSIGN_PATH: Final = "/loadmanager/v1/assign"


def assign_route(lookup: LookupService) -> Route:
    """Return the route that places the bundle named in the body.

    By the epoch the client recognizes the answer of a leader that has been replaced.
    """

    async def assign(request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        given = (await json_object(request)).get("bundle")
        if not isinstance(given, str):
            raise Refused(400, f"bundle = {given!r}; expected a text")
        try:
            bundle = parse_bundle(given)
        except InvalidName as error:
            raise Refused(400, str(error)) from error
        broker, leader = await lookup.assign(bundle), lookup.leader
        return json_reply({"broker": broker, "epoch": leader.epoch if leader else 0})

    # It does what a lookup does, so it needs the same role.
    return Route("POST", ASSIGN_PATH, assign, Role.LOOKUP)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of a request to a sidecar.

    ``withheld`` says why the request carries no token although there is one.
    """

    token: str = ""
    withheld: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A sidecar's whole answer; ``retry_after`` and ``withheld`` are "" for none."""

    status: int
    retry_after: str
    text: str
    withheld: str


class HttpAssignClient:
    """Asks other sidecars over HTTP, with connections kept open between requests.

    ``timeout_s`` is for a whole request, and long: the leader may have to wait for a bundle that
    is under way. ``connect_timeout_s`` is short, so that a dead host is noticed soon. ``tls`` is
    refreshed before each request; None trusts the authorities of the system. ``credentials``
    returns those for the sidecar at a URL, and may raise OSError.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 5.0,
        connect_timeout_s: float = 1.0,
        max_connections: int = 64,
        tls: ClientTls | None = None,
        credentials: Callable[[str], Credentials] = lambda _: Credentials(),
    ) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_timeout_s)
        self._max_connections = max_connections
        self._tls = tls
        self._credentials = credentials
        self._session: aiohttp.ClientSession | None = None

    async def assign(self, leader: LeaderRecord, bundle: BundleId) -> BrokerId:
        url = leader.sidecar_url.rstrip("/") + ASSIGN_PATH
        asked = {"bundle": bundle}
        answer = await self.ask(
            "POST", leader.sidecar_url, ASSIGN_PATH, asked, most_bytes=_MOST_BYTES_OF_A_DECISION
        )
        if answer.status == 200:  # noqa: PLR2004 - HTTP
            return _decision(answer.text, url, leader)
        raise _refusal(answer, url)

    async def topics(
        self, sidecar_url: str, namespace: Namespace
    ) -> Mapping[BundleId, Mapping[TopicName, Rates]]:
        """Return `Topics.own` of another sidecar. Raises `Unavailable`."""
        path = f"{TOPICS_PATH}?namespace={quote(namespace, safe='')}"
        url = sidecar_url.rstrip("/") + path
        answer = await self.ask("GET", sidecar_url, path, most_bytes=_MOST_BYTES_OF_TOPICS)
        if answer.status != 200:  # noqa: PLR2004 - HTTP
            raise Unavailable(refusal_text(url, answer))
        try:
            return topics_from(parse_fields(url, answer.text.encode()))
        except (MalformedContent, InvalidName, json.JSONDecodeError) as error:
            raise Unavailable(f"{url}: {error}") from error

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def ask(
        self,
        method: str,
        sidecar_url: str,
        path: str,
        value: Mapping[str, object] | None = None,
        *,
        most_bytes: int,
        credentials: Credentials | None = None,
        within_s: float | None = None,
    ) -> Answer:
        """Return the answer of the sidecar at a URL to a request for a path.

        ``credentials`` are those of the original caller; ``within_s`` overrides the timeout.
        Raises `Unavailable`: there is no answer, or its body has more than ``most_bytes``.
        """
        timeout = self._timeout
        if within_s is not None:
            timeout = aiohttp.ClientTimeout(total=within_s, sock_connect=timeout.sock_connect)
        base = sidecar_url.rstrip("/")
        try:
            if credentials is None:
                credentials = self._credentials(base)
            headers = {"Authorization": f"Bearer {credentials.token}"} if credentials.token else {}
            # A leader never redirects; a redirect would lead to another server.
            async with self._open_session().request(
                method,
                URL(base + path, encoded=True),  # byte for byte: %2F in a name is no slash
                json=value,
                headers=headers,
                allow_redirects=False,
                timeout=timeout,
            ) as response:
                body = await _read(response, most_bytes)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            what = str(error) or type(error).__name__
            raise Unavailable(f"the sidecar at {sidecar_url} does not answer: {what}") from error
        retry_after = response.headers.get("Retry-After", "")
        return Answer(
            response.status, retry_after, body.decode(errors="replace"), credentials.withheld
        )

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Created at the first request, because a session belongs to its event loop.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._max_connections,
                    ssl=True if self._tls is None else self._tls.context,
                ),
                timeout=self._timeout,
                # The limit counts received bytes, so nothing may be decompressed.
                auto_decompress=False,
                headers={"Accept-Encoding": "identity"},
            )
        if self._tls is not None:
            self._tls.refresh()
        return self._session


async def _read(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most_bytes:
            response.close()
            raise ValueError(f"its answer has more than {most_bytes} bytes")
    return bytes(body)


def _decision(text: str, url: str, leader: LeaderRecord) -> BrokerId:
    try:
        answer = json.loads(text)
        broker, epoch = parse_broker(answer["broker"]), answer["epoch"]
    except (ValueError, TypeError, KeyError, RecursionError, InvalidName):
        raise Unavailable(f"{url}: answered {text[:120]!r}; expected broker and epoch") from None
    if not EPOCH.holds(epoch):
        raise Unavailable(f"{url}: epoch = {epoch!a:.80}; expected {EPOCH.expected}")
    if epoch < leader.epoch:
        raise NotLeader(f"{url}: answered for epoch {epoch}; the leader's is {leader.epoch}")
    return broker


def _refusal(answer: Answer, url: str) -> NotLeader | NamespaceUnknown | Unavailable:
    reason = _reason(answer.text)
    match answer.status:
        case 404 if reason is not None:
            return NamespaceUnknown(reason)
        case 409:
            return NotLeader(reason or f"{url}: does not lead")
        case 503:
            asked_s = answer.retry_after
            wait_s = float(asked_s) if _SECONDS.fullmatch(asked_s) else 1.0
            return Unavailable(reason or f"{url}: has no broker for the bundle", wait_s)
        case _:
            return Unavailable(refusal_text(url, answer))


def refusal_text(url: str, answer: Answer) -> str:
    said = f"{url}: answered {answer.status}: {_reason(answer.text) or answer.text[:120]!r}"
    return f"{said}; asked without a token, {answer.withheld}" if answer.withheld else said


def _reason(text: str) -> str | None:
    try:
        answer: Any = json.loads(text)
    except ValueError:
        return None
    reason = answer.get("reason") if isinstance(answer, dict) else None
    return reason if isinstance(reason, str) else None


def topics_to_json(
    topics: Mapping[BundleId, Mapping[TopicName, Rates]],
) -> dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]]:
    """Return topics in Pulsar's form: namespace, range, domain, name, rates."""
    document: dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]] = {}
    for bundle, inner in sorted(topics.items()):
        namespace, _, hash_range = bundle.rpartition("/")
        domains = document.setdefault(namespace, {}).setdefault(hash_range, {})
        for topic, traffic in sorted(inner.items(), key=lambda one: str(one[0])):
            domains.setdefault(topic.domain, {})[str(topic)] = rates_to_json(traffic)
    return document


def topics_from(document: Fields) -> Mapping[BundleId, Mapping[TopicName, Rates]]:
    """Raises `MalformedContent` or `InvalidName`: the document is not in that form."""
    found: dict[BundleId, dict[TopicName, Rates]] = {}
    for namespace in document.names():
        ranges = document.inner(namespace)
        for hash_range in ranges.names():
            domains = ranges.inner(hash_range)
            found[parse_bundle(f"{namespace}/{hash_range}")] = {
                parse_full_topic(name): rates_from(domains.inner(domain).inner(name))
                for domain in domains.names()
                for name in domains.inner(domain).names()
            }
    return found
