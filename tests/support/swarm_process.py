"""One process of a swarm: many sidecars, each with a session of its own, beside busy brokers.

Started by `swarm` with its settings as JSON. Answers commands, a JSON object a line on its
standard input, with a JSON object a line; ends with its input.
"""

import asyncio
import json
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any, Final

import numpy as np
import psutil
import structlog
import uvloop
from live_sidecars import BusyBroker, LiveSidecar, start_sidecar
from prometheus_client import CollectorRegistry

from loadmanager.adapters.zookeeper import ZooKeeperCoordination, zookeeper_options
from loadmanager.cli.options import freeze_imported_objects
from loadmanager.config import Config
from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import DEFAULT_HASH, position
from loadmanager.core.ids import BundleId, Namespace, TopicName, parse_topic
from loadmanager.ports.lookup import NamespaceUnknown, Unavailable
from loadmanager.telemetry.metrics import Metrics

MSGS_A_BUNDLE_PER_S: Final = 3.0
SPREAD: Final = 0.1
"""How much busier than the least busy bundle another one may be."""
RETRY_S: Final = 0.2


@dataclass
class DrawnTraffic(Mapping[BundleId, float]):
    """Traffic that a bundle's name says, so that it takes no memory; all of it times a factor."""

    factor: float = 1.0

    def __getitem__(self, bundle: BundleId) -> float:
        share = zlib.crc32(bundle.encode()) / 2**32
        return MSGS_A_BUNDLE_PER_S * self.factor * (1 + SPREAD * share)

    def __iter__(self) -> Iterator[BundleId]:
        return iter(())

    def __len__(self) -> int:
        return 0


@dataclass
class SwarmProcess:
    settings: Mapping[str, Any]
    sidecars: list[LiveSidecar] = field(default_factory=list)
    traffic: list[DrawnTraffic] = field(default_factory=list)
    asked: list[Counter[str]] = field(default_factory=list)
    topics: list[TopicName] = field(default_factory=list)
    changing: "asyncio.Task[None] | None" = None

    async def start(self, names: Sequence[str]) -> None:
        for name in names:
            host = name.partition(":")[0]
            given = self.settings["config"]
            sidecar = {
                "listen_host": host,
                "listen_port": 7750,
                "health_port": 0,
                "advertised_url": f"http://{host}:7750",
            }
            config = Config.model_validate({**given, "broker": {"id": name}, "sidecar": sidecar})
            asked: Counter[str] = Counter()
            metrics = Metrics(CollectorRegistry())

            def observe(
                kind: str,
                result: str,
                duration_s: float,
                asked: Counter[str] = asked,
                metrics: Metrics = metrics,
            ) -> None:
                asked[kind] += 1
                metrics.coordination_asked(kind, result, duration_s)

            coordination = ZooKeeperCoordination(zookeeper_options(config), observe)
            traffic = DrawnTraffic()
            seed = zlib.crc32(name.encode())
            one = await start_sidecar(
                config,
                coordination,
                metrics,
                BusyBroker(name, traffic),
                np.random.default_rng(seed),
            )
            self.sidecars.append(one)
            self.traffic.append(traffic)
            self.asked.append(asked)

    def state(self) -> Mapping[str, Any]:
        leading = [one.name for one in self.sidecars if one.leads]
        return {
            "ended": [one.name for one in self.sidecars if one.task.done()],
            "ready": sum(one.application.answering.readiness().ready for one in self.sidecars),
            "brokers": min(len(one.context.cluster_state.brokers) for one in self.sidecars),
            "leading": leading,
            "serving": sum(len(one.broker.serving) for one in self.sidecars),
            "at_s": time.monotonic(),
        }

    def served(self) -> Mapping[str, Any]:
        return {
            "now": {one.name: list(one.broker.serving) for one in self.sidecars},
            "intervals": [
                asdict(spell) for one in self.sidecars for spell in one.broker.intervals()
            ],
        }

    def use(self) -> Mapping[str, Any]:
        process = psutil.Process()
        spent = process.cpu_times()
        return {
            "cpu_s": spent.user + spent.system,
            "memory_bytes": process.memory_full_info().uss,
            "threads": process.num_threads(),
            "asked": {
                one.name: asked for one, asked in zip(self.sidecars, self.asked, strict=True)
            },
            "successors": list(self.sidecars[0].context.cluster_state.successors),
            "at_s": time.monotonic(),
        }

    def draw_topics(self, namespace: str, bundles: int, part: int, of: int) -> None:
        boundaries = Boundaries.even(Namespace(namespace), bundles)
        missing = set(boundaries.bundles[part::of])
        self.topics = []
        for number in count():
            topic = parse_topic(f"persistent://{namespace}/topic-{number}")
            bundle = boundaries.at(position(topic, DEFAULT_HASH))
            if bundle in missing:
                missing.discard(bundle)
                self.topics.append(topic)
            if not missing:
                return

    async def look_up(self, clients: int) -> Mapping[str, Any]:
        waiting = list(enumerate(self.topics))
        latencies_s: list[float] = []
        retried: Counter[str] = Counter()

        async def client() -> None:
            while waiting:
                number, topic = waiting.pop()
                answering = self.sidecars[number % len(self.sidecars)].application.answering
                began_s = time.monotonic()
                while True:
                    try:
                        await answering.find_owner(topic)
                    except (Unavailable, NamespaceUnknown) as error:
                        retried[str(error)[:80]] += 1
                        await asyncio.sleep(RETRY_S)
                    else:
                        break
                latencies_s.append(time.monotonic() - began_s)

        began_s = time.monotonic()
        await asyncio.gather(*(client() for _ in range(clients)))
        return {
            "took_s": time.monotonic() - began_s,
            "latencies_s": latencies_s,
            "retried": dict(retried.most_common(5)),
        }

    def change_loads(self, *, on: bool) -> None:
        if self.changing is not None:
            self.changing.cancel()
        self.changing = asyncio.ensure_future(self._change()) if on else None
        for traffic in self.traffic:
            traffic.factor = 1.0

    async def _change(self) -> None:
        rng = np.random.default_rng(len(self.sidecars))
        while True:
            for traffic in self.traffic:
                traffic.factor = rng.uniform(0.5, 1.5)
            await asyncio.sleep(1.0)

    async def stop(self) -> None:
        for one in self.sidecars:
            one.stopping.set()
        await asyncio.wait([one.task for one in self.sidecars])


async def main(settings: Mapping[str, Any]) -> None:
    swarm = SwarmProcess(settings)
    reader = asyncio.StreamReader(limit=2**24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        asked = json.loads(line)
        answer = getattr(swarm, asked.pop("do"))(**asked)
        if asyncio.iscoroutine(answer):
            answer = await answer
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(30),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    freeze_imported_objects()  # as each command of the service does
    uvloop.run(main(json.loads(sys.argv[1])))
