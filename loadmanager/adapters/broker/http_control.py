import asyncio
from collections.abc import Mapping
from typing import Final, TypeVar
from urllib.parse import quote

import aiohttp
import structlog

from loadmanager.adapters.broker.contract import (
    PREFIX,
    Body,
    ErrorAnswer,
    LeaseAnswer,
    LeaseRequest,
    LoadRequest,
    TopicsAnswer,
    UnloadRequest,
    parsed,
    parsed_stats,
)
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId, BundleId, TopicName
from loadmanager.core.rates import Rates
from loadmanager.ports.broker import (
    BrokerRefused,
    BrokerState,
    BrokerStats,
    BrokerUnreachable,
    NotTheContract,
    StaleAgent,
)

log = structlog.get_logger()

_WAIT_S: Final = 1.0


async def control_url_of(broker: BrokerId, configured: str) -> str:
    """Return where to send commands, and log why.

    The configured URL; else loopback if anything listens there, else the broker's id. The broker
    is on this host as a rule, and what goes to loopback leaves no host. A broker in a container of
    its own does not listen on this one's loopback.
    """
    url, why = configured, "[broker] control_url is set"
    if not configured:
        url, why = await _url_that_answers(broker)
    log.info("broker.control.chosen", url=url, why=why)
    return url


async def _url_that_answers(broker: BrokerId) -> tuple[str, str]:
    port = broker.rpartition(":")[2]
    loopback = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(_WAIT_S):
            _, writer = await asyncio.open_connection("127.0.0.1", int(port))
    except TimeoutError:
        why = f"no connection within {_WAIT_S:g} s"
    except OSError as error:
        why = error.strerror or str(error)
    else:
        writer.close()
        return loopback, "[broker] control_url is not set, and it answers there"
    return f"http://{broker}", f"nothing answers at {loopback}: {why}"


# Some thirty thousand bundles' statistics; far more than one broker serves.
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
CONNECTIONS: Final = 40
"""One for each of the 32 concurrent commands of the agent, and some for statistics and the lease:
a renewal that waited for slow loads could lose the lease."""

_OK: Final = 200
_NO_CONTENT: Final = 204
_CONFLICT: Final = 409
_NO_SUCH_PATH: Final = (404, 405)

_Answer = TypeVar("_Answer", bound=Body)


class HttpBrokerControl:
    """The `BrokerControl` port over HTTP, for one event loop.

    Redirects, cookies, compression and proxies of the environment are not followed or used: the
    broker is the next process, and a detour would be a mistake. ``timeout_s`` limits a command from
    connecting to the answer's last byte; unloading waits for requests in service, so it has
    ``unload_timeout_s``. Raises `ValueError` for a URL that is not http, or a limit not above zero.
    """

    def __init__(
        self,
        base_url: str,
        timeout_s: float = 2.0,
        *,
        unload_timeout_s: float | None = None,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        secret: str = "",
    ) -> None:
        if not base_url.startswith(("http://", "https://")) or "?" in base_url or "#" in base_url:
            raise ValueError(f"broker URL {base_url!r}; expected http://host:port")
        self.root = base_url.rstrip("/") + PREFIX
        """Where the contract's paths begin."""
        self._timeout_s = timeout_s
        self._unload_timeout_s = timeout_s if unload_timeout_s is None else unload_timeout_s
        self._max_answer_bytes = max_answer_bytes
        self._proof = {"Authorization": f"Bearer {secret}"} if secret else {}
        if min(self._timeout_s, self._unload_timeout_s, max_answer_bytes) <= 0:
            raise ValueError("timeouts and max_answer_bytes of a broker must be above zero")
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def health(self, timeout_s: float) -> None:
        await self._command("GET", f"{self.root}/health", _OK, timeout_s=timeout_s)

    async def stats(self) -> BrokerStats:
        url = f"{self.root}/stats"
        content = await self._command("GET", url, _OK)
        try:
            return parsed_stats(content, f"GET {url}")
        except MalformedContent as error:
            raise _no_contract(str(error)) from None

    async def topics(self, bundle: BundleId) -> Mapping[TopicName, Rates]:
        url = f"{self.root}/bundles/{bundle}/topics"
        where = f"GET {url}"
        answer = _read(TopicsAnswer, await self._command("GET", url, _OK), where)
        try:
            return answer.to_topics(bundle, where)
        except MalformedContent as error:
            raise BrokerRefused(str(error)) from None

    async def renew_lease(
        self, *, agent_epoch: int, until_s: float | None, incarnation: str | None
    ) -> BrokerState:
        url = f"{self.root}/lease"
        request = LeaseRequest(
            agent_epoch=agent_epoch, until_seconds=until_s, incarnation=incarnation
        )
        content = await self._command("PUT", url, _OK, request)
        return BrokerState(**vars(_read(LeaseAnswer, content, f"PUT {url}")))

    async def load(self, bundle: BundleId, *, agent_epoch: int, fencing_token: int) -> None:
        request = LoadRequest(agent_epoch=agent_epoch, fencing_token=fencing_token)
        await self._command("PUT", f"{self.root}/bundles/{bundle}", _NO_CONTENT, request)

    async def unload(
        self, bundle: BundleId, *, agent_epoch: int, fencing_token: int, next_owner_url: str = ""
    ) -> None:
        request = UnloadRequest(
            agent_epoch=agent_epoch, fencing_token=fencing_token, next_owner_url=next_owner_url
        )
        query = f"agentEpoch={request.agent_epoch}&fencingToken={request.fencing_token}"
        if next_owner_url:
            query += f"&nextOwnerUrl={quote(request.next_owner_url, safe='')}"
        url = f"{self.root}/bundles/{bundle}?{query}"
        await self._command("DELETE", url, _NO_CONTENT, timeout_s=self._unload_timeout_s)

    async def close(self) -> None:
        """Close connections; later commands raise `BrokerUnreachable`."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _command(
        self,
        method: str,
        url: str,
        expected_status: int,
        body: Body | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        where = f"{method} {url}"
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                status, content = await self._exchange(method, url, body)
        except TimeoutError:
            raise BrokerUnreachable(f"{where}: no whole answer within {limit_s:g} s") from None
        except aiohttp.ClientResponseError as error:
            raise _no_contract(f"{where}: the answer is no HTTP ({error.message})") from error
        except (aiohttp.ClientError, OSError) as error:
            raise BrokerUnreachable(f"{where}: {type(error).__name__}: {error}") from error
        if status != expected_status:
            raise _refusal(where, status, content, expected_status)
        return content

    async def _exchange(self, method: str, url: str, body: Body | None) -> tuple[int, bytes]:
        headers = {"Accept": "application/json", **self._proof}
        if body is not None:
            headers["Content-Type"] = "application/json"
        data = None if body is None else body.to_json()
        async with self._open_session(url).request(
            method, url, data=data, headers=headers, allow_redirects=False
        ) as response:
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > self._max_answer_bytes:
                    # Leaving the block with unread content closes the connection.
                    raise BrokerRefused(
                        f"{method} {url}: the answer is longer than expected, "
                        f"at most {self._max_answer_bytes} bytes"
                    )
            return response.status, bytes(content)

    def _open_session(self, url: str) -> aiohttp.ClientSession:
        if self._closed:
            raise BrokerUnreachable(f"{url}: this control of the broker is closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
            )
        return self._session


def _read(model: type[_Answer], content: bytes, where: str) -> _Answer:
    try:
        return parsed(model, content, where)
    except MalformedContent as error:
        raise _no_contract(str(error)) from None


def _no_contract(answered: str) -> NotTheContract:
    return NotTheContract(
        f"{answered}. Expected a broker that speaks the broker contract, "
        "which docs/broker-contract.md describes; is [broker] control_url that broker's?"
    )


def _refusal(where: str, status: int, content: bytes, expected_status: int) -> BrokerRefused:
    """Return what an unexpected status means.

    Only a 409 that keeps to the contract makes the agent stop: a stray one, say from a
    proxy, is a refusal like others.
    """
    text = f"{where}: status {status}"
    try:
        reason = parsed(ErrorAnswer, content, text).reason
    except MalformedContent as error:
        return _no_contract(f"{error}; expected status {expected_status}, or a reason")
    if status in _NO_SUCH_PATH and "/bundles/" not in where:
        return _no_contract(f"{text}: {reason[:500]}")  # As Pulsar's own web service answers.
    kind = StaleAgent if status == _CONFLICT else BrokerRefused
    return kind(f"{text}: {reason[:500]}; expected status {expected_status}")
