"""The traffic generator: a process of its own that only looks topics up and publishes.

``python -m loadmanager.demo.traffic SETTINGS.json`` looks up every topic, so that the
cluster places every bundle. Then it publishes, with much more traffic for the bundles of one
broker than for the others. On SIGTERM it finishes the messages that are due, and ends. It writes
one `TrafficReport` per second to stdout.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
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
    LookupClient,
    Producer,
)
from loadmanager.demo.counts import Kind, TrafficCounts
from loadmanager.demo.publishes import Publish
from loadmanager.demo.traffic_plan import Schedule, bundle_shares, topic_names, topic_shares

BEAT_S: Final = 0.01
REPORT_S: Final = 1.0
LOOKUPS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSettings:
    """Settings of a traffic generator, in a JSON file.

    ``lookups_per_s`` are made in addition to publishing, as by clients that reconnect: producers
    look up only when an owner changes, and lookups must work at all times. ``attempt_timeout_s``
    is the timeout of one request. ``record`` is a file that gets a line for each attempt to
    publish; "" for none.
    """

    sidecar_urls: tuple[str, ...]
    namespace: str
    hash_name: HashName
    bundles: int
    topics: int
    seed: int
    rate_per_s: float
    lookups_per_s: float = 20.0
    retry_bound_s: float = RETRY_BOUND_S
    attempt_timeout_s: float = ATTEMPT_TIMEOUT_S
    record: str = ""

    def save(self, path: Path) -> None:
        """Write the settings to ``path``."""
        path.write_text(json.dumps(asdict(self), indent=2))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the settings from ``path``."""
        fields = json.loads(path.read_text())
        return cls(**fields | {"sidecar_urls": tuple(fields["sidecar_urls"])})


class Traffic:
    """One run of the generator, in one event loop.

    ``record`` is called with each attempt to publish.
    """

    def __init__(
        self,
        settings: TrafficSettings,
        http: aiohttp.ClientSession,
        record: Callable[[Publish], None] | None = None,
    ) -> None:
        self._settings = settings
        self._rng = np.random.default_rng(settings.seed)
        self._counts = TrafficCounts()
        self._stopping = asyncio.Event()
        self._lookup = LookupClient(
            http,
            settings.sidecar_urls,
            self._counts,
            self._rng,
            settings.retry_bound_s,
            settings.attempt_timeout_s,
        )
        bounds = Boundaries.even(parse_namespace(settings.namespace), settings.bundles)
        topics = topic_names(settings.topics, bounds, settings.hash_name)
        self._producers = {
            topic: Producer(
                topic,
                bounds.at(position(topic, settings.hash_name)),
                self._lookup,
                self._counts,
                settings.retry_bound_s,
                record=record,
            )
            for topic in topics
        }

    def stop(self) -> None:
        """Have no further message become due."""
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
        seed = self._settings.seed
        placed = {t: p.bundle for t, p in self._producers.items() if p.bundle in placement}
        shares = topic_shares(placed, bundle_shares(placement, seed), seed) if placed else {}
        rate_per_s = self._settings.rate_per_s
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


def generate(settings: TrafficSettings) -> None:
    """Run until SIGTERM or SIGINT, then finish."""
    with ExitStack() as files:
        record = None
        if settings.record:
            file = files.enter_context(Path(settings.record).open("a", 1, encoding="utf-8"))

            def record(publish: Publish) -> None:
                file.write(f"{publish.to_line()}\n")

        asyncio.run(_generate(settings, record))


async def _generate(settings: TrafficSettings, record: Callable[[Publish], None] | None) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        traffic = Traffic(settings, http, record)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, traffic.stop)
        await traffic.run()


if __name__ == "__main__":
    generate(TrafficSettings.load(Path(sys.argv[1])))
