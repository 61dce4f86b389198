"""The traffic generator: a process of its own that only looks topics up and publishes.

``python -m loadmanager.demo.traffic SETTINGS.json`` looks up every topic, so that the
cluster places every bundle. Then it publishes, with much more traffic for the bundles of one
broker than for the others. On SIGTERM it finishes the messages that are due, and ends. It writes
one `TrafficReport` per second to stdout.
"""

import asyncio
import heapq
import json
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal, Self
from urllib.parse import quote

import aiohttp
import numpy as np
from yarl import URL

from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import MalformedContent
from loadmanager.core.hashing import HashName, position
from loadmanager.core.ids import BrokerId, BundleId, TopicName, parse_namespace

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


def back_offs_s(rng: np.random.Generator) -> Iterator[float]:
    """Yield waits that double up to a second, half of each random: clients do not retry at once."""
    longest_s = FIRST_BACK_OFF_S
    while True:
        yield longest_s * float(rng.uniform(0.5, 1.0))
        longest_s = min(MAX_BACK_OFF_S, longest_s * 2)


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
        waits_s = back_offs_s(self.rng)
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
            unreachable = 0 if status else unreachable + 1
            if unreachable % len(self.sidecar_urls) == 0:
                await asyncio.sleep(next(waits_s))
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

    async def send(self, url: str) -> tuple[int, str]:
        timeout = self.lookup.attempt_timeout
        return await request(self.lookup.http, "POST", url, data=PAYLOAD, timeout=timeout)

    async def _publish(self, deadline_s: float) -> bool:
        waits_s = back_offs_s(self.lookup.rng)
        while True:
            if self.owner_url is None:
                self.owner_url = await self.lookup.find_owner(self.topic)
            if self.owner_url is not None:
                url = f"{self.owner_url}/publish/{topic_path(self.topic)}"
                status, text = await self.send(url)
                if status in ACCEPTED:
                    return True
                said = f"{status} {text}" if status else text
                self.counts.last_publish_error = f"publish {url}: {said}"
            self.owner_url = None
            if monotonic() >= deadline_s:
                return False
            self.counts.publish_retries += 1
            await asyncio.sleep(next(waits_s))


BEAT_S: Final = 0.01
REPORT_S: Final = 1.0
LOOKUPS_AT_ONCE: Final = 8
HOT_SHARE_OF_MEAN: Final = 2.2
"""The traffic of the hot broker's bundles together, as a multiple of the mean of a broker."""

MAX_HOT_SHARE: Final = 0.95
HOT_SLOPE: Final = 1.3
"""The traffic of the largest hot bundle divided by that of the smallest one."""


def topic_names(count: int, bounds: Boundaries, hash_name: HashName) -> tuple[TopicName, ...]:
    """Return ``count`` topics spread over the bundles as evenly as the number allows.

    Otherwise one bundle in five hundred would have no topic, and so never be owned.
    """
    bundles = bounds.bundles
    if count < len(bundles):
        raise ValueError(f"{count} topics cannot cover {len(bundles)} bundles")
    room = {b: count // len(bundles) + (i < count % len(bundles)) for i, b in enumerate(bundles)}
    names: list[TopicName] = []
    serial = 0
    while len(names) < count:
        topic = TopicName("persistent", bounds.namespace, f"orders-{serial:05d}")
        serial += 1
        bundle = bounds.at(position(topic, hash_name))
        if room[bundle]:
            room[bundle] -= 1
            names.append(topic)
    return tuple(names)


def bundle_shares(placement: Mapping[BundleId, BrokerId], seed: int) -> dict[BundleId, float]:
    """Return each bundle's share of the traffic, with a sum of 1, so that one broker is hot.

    The broker with most bundles (the seed decides between equals) gets ``2.2 / N`` of the traffic,
    at most 0.95; the others share the rest evenly. No hot bundle is so large that a balancer could
    not reach an imbalance of 1.14.
    """
    counts = Counter(placement.values())
    rng = np.random.default_rng(seed)
    most = max(counts.values())
    candidates = sorted(broker for broker, count in counts.items() if count == most)
    hot_broker = candidates[int(rng.integers(len(candidates)))]
    hot = sorted(bundle for bundle, broker in placement.items() if broker == hot_broker)
    cold = sorted(set(placement) - set(hot))
    hot_share = min(MAX_HOT_SHARE, HOT_SHARE_OF_MEAN / len(counts)) if cold else 1.0
    sizes = rng.permutation(np.linspace(HOT_SLOPE, 1.0, len(hot)))
    shares = dict(zip(hot, (hot_share * sizes / sizes.sum()).tolist(), strict=True))
    return shares | dict.fromkeys(cold, (1.0 - hot_share) / max(1, len(cold)))


def topic_shares(
    bundle_of: Mapping[TopicName, BundleId], shares: Mapping[BundleId, float], seed: int
) -> dict[TopicName, float]:
    """Return each topic's share of the traffic: the k-th of a bundle gets ``1/k`` of it (Zipf)."""
    rng = np.random.default_rng(seed)
    topics: defaultdict[BundleId, list[TopicName]] = defaultdict(list)
    for topic in sorted(bundle_of, key=str):
        topics[bundle_of[topic]].append(topic)
    weights: dict[TopicName, float] = {}
    for bundle in sorted(topics):
        zipf = 1.0 / (1.0 + rng.permutation(len(topics[bundle])))
        portions = (shares[bundle] * zipf / zipf.sum()).tolist()
        weights |= zip(topics[bundle], portions, strict=True)
    return weights


class Schedule:
    """Messages of producers with constant periods: random ones would make rates vary by a tenth."""

    def __init__(
        self, shares: Mapping[TopicName, float], *, rate_per_s: float, start_s: float, seed: int
    ) -> None:
        rng = np.random.default_rng(seed)
        self._topics: Sequence[TopicName] = sorted((t for t in shares if shares[t] > 0), key=str)
        self._periods_s = [1.0 / (rate_per_s * shares[topic]) for topic in self._topics]
        phases = rng.random(len(self._topics)).tolist()
        self._due = [
            (start_s + phase * period_s, index)
            for index, (phase, period_s) in enumerate(zip(phases, self._periods_s, strict=True))
        ]
        heapq.heapify(self._due)

    @property
    def next_s(self) -> float:
        return self._due[0][0] if self._due else float("inf")

    def due(self, until_s: float) -> list[tuple[float, TopicName]]:
        messages: list[tuple[float, TopicName]] = []
        while self._due and self._due[0][0] <= until_s:
            due_s, index = self._due[0]
            heapq.heapreplace(self._due, (due_s + self._periods_s[index], index))
            messages.append((due_s, self._topics[index]))
        return messages


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSettings:
    """Settings, in a JSON file. Lookups are made as by clients that reconnect."""

    sidecar_urls: tuple[str, ...]
    namespace: str
    hash_name: HashName
    bundles: int
    topics: int
    seed: int
    rate_per_s: float
    lookups_per_s: float = 20.0
    attempt_timeout_s: float = ATTEMPT_TIMEOUT_S

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2))

    @classmethod
    def load(cls, path: Path) -> Self:
        fields = json.loads(path.read_text())
        return cls(**fields | {"sidecar_urls": tuple(fields["sidecar_urls"])})


class Traffic:
    def __init__(
        self,
        settings: TrafficSettings,
        http: aiohttp.ClientSession,
        producer: Callable[..., Producer],
    ) -> None:
        self._settings = settings
        self._rng = np.random.default_rng(settings.seed)
        self._counts = counts = TrafficCounts()
        self._stopping = asyncio.Event()
        urls, timeout_s = settings.sidecar_urls, settings.attempt_timeout_s
        self._lookup = LookupClient(http, urls, counts, self._rng, RETRY_BOUND_S, timeout_s)
        bounds = Boundaries.even(parse_namespace(settings.namespace), settings.bundles)
        self._producers: dict[TopicName, Producer] = {
            topic: producer(
                topic, bounds.at(position(topic, settings.hash_name)), self._lookup, counts
            )
            for topic in topic_names(settings.topics, bounds, settings.hash_name)
        }

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Place, publish until stopped, finish what is due, and report the final counts."""
        async with asyncio.TaskGroup() as tasks:
            reports = tasks.create_task(self._report())
            placement = await self._place()
            self._write_report("placed")
            workers = [tasks.create_task(p.run()) for p in self._producers.values()]
            lookups = tasks.create_task(self._look_up_regularly())
            await self._publish(placement)
            lookups.cancel()
            # It ends, because each message has a retry bound.
            await asyncio.gather(*(p.finish() for p in self._producers.values()))
            for task in (reports, *workers):
                task.cancel()
        self._write_report("final")

    async def _place(self) -> Mapping[BundleId, BrokerId]:
        """Look up every topic until each has an owner; a few at a time, as clients do."""
        at_once = asyncio.Semaphore(LOOKUPS_AT_ONCE)

        async def find(producer: Producer) -> None:
            async with at_once:
                while producer.owner_url is None and not self._stopping.is_set():
                    producer.owner_url = await self._lookup.find_owner(producer.topic)

        await asyncio.gather(*(find(producer) for producer in self._producers.values()))
        return {
            producer.bundle: BrokerId(URL(producer.owner_url).authority)
            for producer in self._producers.values()
            if producer.owner_url is not None
        }

    async def _publish(self, placement: Mapping[BundleId, BrokerId]) -> None:
        seed, rate_per_s = self._settings.seed, self._settings.rate_per_s
        placed = {t: p.bundle for t, p in self._producers.items() if p.bundle in placement}
        shares = topic_shares(placed, bundle_shares(placement, seed), seed) if placed else {}
        schedule = Schedule(shares, rate_per_s=rate_per_s, start_s=monotonic(), seed=seed)
        while not self._stopping.is_set():
            for due_s, topic in schedule.due(monotonic()):
                self._producers[topic].add(due_s)
            await asyncio.sleep(max(BEAT_S, min(0.1, schedule.next_s - monotonic())))

    async def _look_up_regularly(self) -> None:
        topics: list[TopicName] = list(self._producers)
        async with asyncio.TaskGroup() as lookups:
            while True:
                await asyncio.sleep(1.0 / self._settings.lookups_per_s)
                topic = topics[int(self._rng.integers(len(topics)))]
                lookups.create_task(self._lookup.find_owner(topic))

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            self._write_report("progress")

    def _write_report(self, kind: Kind) -> None:
        sys.stdout.write(self._counts.report(kind, monotonic()).to_line() + "\n")
        sys.stdout.flush()


async def generate(settings: TrafficSettings, producer: Callable[..., Producer] = Producer) -> None:
    """Run until SIGTERM or SIGINT, then finish."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        traffic = Traffic(settings, http, producer)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, traffic.stop)
        await traffic.run()


if __name__ == "__main__":
    asyncio.run(generate(TrafficSettings.load(Path(sys.argv[1]))))
