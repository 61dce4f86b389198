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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Final, Self

import aiohttp
import numpy as np
from yarl import URL

from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import HashName, position
from loadmanager.core.ids import BrokerId, BundleId, TopicName, parse_namespace
from loadmanager.demo.client import (
    ATTEMPT_TIMEOUT_S,
    RETRY_BOUND_S,
    Kind,
    LookupClient,
    Producer,
    TrafficCounts,
)

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
            await self._publish(self._schedule(placement))
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

    def _schedule(self, placement: Mapping[BundleId, BrokerId]) -> Schedule:
        seed, rate_per_s = self._settings.seed, self._settings.rate_per_s
        placed = {t: p.bundle for t, p in self._producers.items() if p.bundle in placement}
        shares = topic_shares(placed, bundle_shares(placement, seed), seed) if placed else {}
        return Schedule(shares, rate_per_s=rate_per_s, start_s=monotonic(), seed=seed)

    async def _publish(self, schedule: Schedule) -> None:
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
