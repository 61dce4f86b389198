"""A client of the cluster: looks owners up at any sidecar, publishes to them, and counts both."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from time import monotonic
from typing import Any, Final, Literal, Self
from urllib.parse import quote

import aiohttp
import numpy as np

from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId, TopicName

ATTEMPT_TIMEOUT_S: Final = 10.0
CONNECT_TIMEOUT_S: Final = 2.0
FIRST_BACK_OFF_S: Final = 0.05
MAX_BACK_OFF_S: Final = 1.0
RETRY_BOUND_S: Final = 30.0
"""Operation timeout and send timeout of Pulsar's own clients."""

SLOW_S: Final = 0.5
"""Messages that waited less are not reported individually."""

PAYLOAD: Final = b"x" * 256
HTTP_OK: Final = 200
ACCEPTED: Final = range(200, 300)

Kind = Literal["placed", "progress", "final"]


@dataclass(slots=True, kw_only=True)
class Counts:
    """Counts since the start. ``waiting`` messages are due and not yet accepted."""

    published: int = 0
    publish_errors: int = 0
    publish_retries: int = 0
    lookups: int = 0
    lookup_errors: int = 0
    waiting: int = 0
    last_lookup_error: str = ""
    last_publish_error: str = ""


@dataclass(slots=True, kw_only=True)
class TrafficReport(Counts):
    """The counts at one time of the machine's monotonic clock.

    ``slowest_s`` has the longest wait of a late message of each bundle since the last report.
    ``placed`` comes once, when every topic has an owner.
    """

    kind: Kind
    at_s: float
    slowest_s: Mapping[BundleId, float] = field(default_factory=dict)

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Return the report that `to_line` encoded; raises `MalformedContent` for another line."""
        try:
            values: dict[str, Any] = json.loads(line)
            return cls(**values)
        except (ValueError, TypeError) as error:
            expected = "a JSON object with the fields of TrafficReport"
            raise MalformedContent("traffic generator", repr(line), expected) from error


@dataclass(slots=True, kw_only=True)
class TrafficCounts(Counts):
    """The running counts of one traffic generator."""

    _slowest_s: dict[BundleId, float] = field(default_factory=dict)

    def ended(self, bundle: BundleId, waited_s: float, *, accepted: bool) -> None:
        """Count a message that was accepted, or given up, so long after it was due."""
        self.published += accepted
        self.publish_errors += not accepted
        self.waiting -= 1
        if waited_s >= SLOW_S:
            self._slowest_s[bundle] = max(waited_s, self._slowest_s.get(bundle, 0.0))

    def report(self, kind: Kind, at_s: float) -> TrafficReport:
        slowest_s, self._slowest_s = self._slowest_s, {}
        counts = {one.name: getattr(self, one.name) for one in fields(Counts)}
        return TrafficReport(kind=kind, at_s=at_s, slowest_s=slowest_s, **counts)


async def request(
    http: aiohttp.ClientSession, method: str, url: str, **options: Any
) -> tuple[int, str]:
    """Return status and text of the answer; status 0 and the error without one."""
    try:
        async with http.request(method, url, **options) as answer:
            return answer.status, await answer.text()
    except (aiohttp.ClientError, TimeoutError) as error:
        return 0, repr(error)


def topic_path(topic: TopicName) -> str:
    return f"{topic.domain}/{topic.namespace}/{quote(topic.local, safe='')}"


class BackOff:
    """Waits that double up to a second, half of each random: not all clients retry at once."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._next_s = FIRST_BACK_OFF_S

    def next_s(self) -> float:
        wait_s = self._next_s * float(self._rng.uniform(0.5, 1.0))
        self._next_s = min(MAX_BACK_OFF_S, self._next_s * 2)
        return wait_s


@dataclass(slots=True)
class LookupClient:
    """Looks owners up at the sidecars in turn, with retries for ``retry_bound_s``."""

    http: aiohttp.ClientSession
    sidecar_urls: Sequence[str]
    counts: TrafficCounts
    rng: np.random.Generator
    retry_bound_s: float = RETRY_BOUND_S
    attempt_timeout_s: float = ATTEMPT_TIMEOUT_S
    _turn: int = 0

    @property
    def attempt_timeout(self) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=self.attempt_timeout_s, sock_connect=CONNECT_TIMEOUT_S)

    async def find_owner(self, topic: TopicName) -> str | None:
        """Return the URL of the topic's owner, None without an answer within the bound.

        A sidecar that does not answer is no error: the next one is asked. An answer other than 200
        is one, counted once per lookup.
        """
        self.counts.lookups += 1
        deadline_s = monotonic() + self.retry_bound_s
        back_off = BackOff(self.rng)
        unreachable = 0
        failed = False
        while monotonic() < deadline_s:
            self._turn += 1
            sidecar_url = self.sidecar_urls[self._turn % len(self.sidecar_urls)]
            url = f"{sidecar_url}/lookup/v2/topic/{topic_path(topic)}"
            status, text = await request(self.http, "GET", url, timeout=self.attempt_timeout)
            if status == HTTP_OK:
                return str(json.loads(text)["httpUrl"])
            if status:
                failed = self._note_failure(f"lookup {url}: {status} {text}", failed)
                unreachable = 0
            else:
                unreachable += 1
            if unreachable % len(self.sidecar_urls) == 0:
                await asyncio.sleep(back_off.next_s())
        self._note_failure(f"lookup of {topic}: no answer in {self.retry_bound_s:g} s", failed)
        return None

    def _note_failure(self, what: str, failed_before: bool) -> bool:
        self.counts.last_lookup_error = what
        self.counts.lookup_errors += not failed_before
        return True


@dataclass(slots=True)
class Producer:
    """Publishes the messages of one topic in sequence, each within ``retry_bound_s``."""

    topic: TopicName
    bundle: BundleId
    lookup: LookupClient
    counts: TrafficCounts
    retry_bound_s: float = RETRY_BOUND_S
    owner_url: str | None = None
    _due_s: asyncio.Queue[float] = field(default_factory=asyncio.Queue)

    def add(self, due_s: float) -> None:
        self.counts.waiting += 1
        self._due_s.put_nowait(due_s)

    async def run(self) -> None:
        while True:
            due_s = await self._due_s.get()
            accepted = await self._publish(due_s + self.retry_bound_s)
            self.counts.ended(self.bundle, monotonic() - due_s, accepted=accepted)
            self._due_s.task_done()

    async def finish(self) -> None:
        await self._due_s.join()

    async def send(self, owner_url: str) -> tuple[int, str]:
        url = f"{owner_url}/publish/{topic_path(self.topic)}"
        timeout = self.lookup.attempt_timeout
        return await request(self.lookup.http, "POST", url, data=PAYLOAD, timeout=timeout)

    async def _publish(self, deadline_s: float) -> bool:
        back_off = BackOff(self.lookup.rng)
        while True:
            if self.owner_url is None:
                self.owner_url = await self.lookup.find_owner(self.topic)
            if self.owner_url is not None:
                status, text = await self.send(self.owner_url)
                if status in ACCEPTED:
                    return True
                url = f"{self.owner_url}/publish/{topic_path(self.topic)}"
                said = f"{status} {text}" if status else text
                self.counts.last_publish_error = f"publish {url}: {said}"
            self.owner_url = None
            if monotonic() >= deadline_s:
                return False
            self.counts.publish_retries += 1
            await asyncio.sleep(back_off.next_s())
