"""A simulator's scenario run for real: the demo's processes, a real ZooKeeper, steady traffic.

Only what a small scenario needs is carried over: one class of brokers, whose names are
those of the demo, and loads that are one topic in one bundle each and never change.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any, Final

import aiohttp
import numpy as np
import pytest

from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.zookeeper.java import EmbeddedZooKeeperError, find_java
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, TopicName
from loadmanager.demo.children import Children
from loadmanager.demo.client import LookupClient, Producer, TrafficCounts
from loadmanager.demo.cluster import Cluster, Member, Table
from loadmanager.demo.figures import ClusterSample, Observer
from loadmanager.demo.settings import DemoSettings
from loadmanager.demo.traffic import Schedule
from loadmanager.reference_broker.changes import read_record
from loadmanager.simulator.scenario import Load, Scenario
from tests.testbed.checker.availability import Gap, gaps

ROUNDS: Final = 5
"""How many rounds that may move something are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A move that a round decided on; brokers by name.

    ``round`` counts from 1, the first round that may move anything.
    """

    round: int
    bundle: BundleId
    source: str
    target: str

    @property
    def way(self) -> tuple[BundleId, str, str]:
        return self.bundle, self.source, self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """What happened. Times are seconds since the leader may move anything.

    ``looks`` begin with the warm-up, at negative times. The first round that may move
    something was at ``first_round_s``, the others each ``interval_s`` later. ``pauses_s``
    are how long moved bundles were served by nobody, as the brokers' own records say.
    ``served_fraction`` is what all brokers served of what was asked for: where that is
    well below 1 the machine had not enough CPU for them, and the loads say nothing.
    """

    steps: tuple[Step, ...]
    looks: tuple["LiveLook", ...]
    first_round_s: float
    interval_s: float
    ended_s: float
    publish_errors: int
    publish_retries: int
    pauses_s: tuple[float, ...] = ()
    served_fraction: float = 1.0


@dataclass(frozen=True, slots=True)
class LiveLook:
    """The cluster at one moment, brokers by name: CPU usage, and what each bundle's rate was."""

    at_s: float
    cpu_fraction: Mapping[str, float]
    served: Mapping[str, Mapping[BundleId, float]]

    @property
    def owners(self) -> dict[BundleId, str]:
        return {bundle: name for name, rates in self.served.items() for bundle in rates}

    @property
    def msgs_per_s(self) -> float:
        return sum(sum(rates.values()) for rates in self.served.values())


def topic_of(load: Load) -> TopicName:
    return TopicName("persistent", load.namespace, "topic-0")


def bundle_of(load: Load) -> BundleId:
    (bundle,) = Boundaries.even(load.namespace, 1).bundles
    return bundle


BURNT_MS_PER_MESSAGE: Final = 4.0
"""What a broker burns of its CPU for a message, besides what receiving it takes."""

BEAT_S: Final = 0.01
LOOK_EVERY_S: Final = 0.5
WARM_UP_S: Final = 9.0
"""Traffic before the first round that counts: twice the short averages' ten samples."""

PLACED_BOUND_S: Final = 60.0
STEADY_S: Final = 5.0
STEADY_BOUND_S: Final = 40.0
UNSTEADY_FRACTION: Final = 0.1
"""Before the leader may move anything, what is served must be what is asked for, so nearly."""

SECTIONS: Final = ("report", "leader", "shedding", "placement", "planner")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings(DemoSettings):
    """The demo's, but for what a scenario says of its brokers."""

    cores: float

    @property
    def cpu_ms_per_message(self) -> float:
        return BURNT_MS_PER_MESSAGE

    @property
    def cores_per_broker(self) -> float:
        return self.cores


class LiveCluster(Cluster):
    def __init__(
        self,
        scenario: Scenario,
        settings: LiveSettings,
        children: Children,
        http: aiohttp.ClientSession,
    ) -> None:
        super().__init__(settings, children, http)
        self._scenario = scenario

    def _sidecar_settings(self, member: Member) -> Table:
        table = {**super()._sidecar_settings(member)}
        del table["shedding.settings"]
        for section in SECTIONS:
            values = getattr(self._scenario, section).model_dump(exclude_none=True)
            if of_strategy := values.pop("settings", None):
                table[f"{section}.settings"] = of_strategy
            table[section] = values
        return table


@asynccontextmanager
async def live_scenario(scenario: Scenario, data_dir: Path) -> AsyncIterator["LiveScenario"]:
    try:
        find_java()
    except EmbeddedZooKeeperError as error:
        pytest.skip(str(error))
    (brokers,) = scenario.brokers
    settings = LiveSettings(
        data_dir=data_dir,
        brokers=brokers.count,
        bundles=brokers.count,
        topics=brokers.count,
        cores=brokers.cores,
    )
    children = Children(data_dir)
    try:
        async with aiohttp.ClientSession() as http:
            yield LiveScenario(scenario, LiveCluster(scenario, settings, children, http), http)
    finally:
        await children.stop()


@dataclass(frozen=True, slots=True)
class Round:
    number: int
    at_s: float


class LiveScenario:
    def __init__(
        self, scenario: Scenario, cluster: LiveCluster, http: aiohttp.ClientSession
    ) -> None:
        self._scenario = scenario
        self._cluster = cluster
        self._http = http
        self._observer = Observer(http, cluster.members, cluster.control_secret)
        self._names = {member.broker: member.name for member in cluster.members}
        self._clock = SystemClock()
        self._counts = TrafficCounts()
        self._looks: list[ClusterSample] = []
        self._opened_s = 0.0
        rng = np.random.default_rng(scenario.seed)
        urls = [member.sidecar_url for member in cluster.members]
        self._lookup = LookupClient(http, urls, self._counts, rng)
        self._producers = {
            topic_of(load): Producer(topic_of(load), bundle_of(load), self._lookup, self._counts)
            for load in scenario.load
        }

    async def run(self) -> LiveRun:
        await self._cluster.start(lambda _: None)
        await self._ask("PUT", "/admin/v2/loadmanager/balancing/pause")
        for load in self._scenario.load:
            await self._ask(
                "PUT", f"/admin/v2/namespaces/{load.namespace}", {"bundles": {"numBundles": 1}}
            )
            await self._lookup.find_owner(topic_of(load))
        async with asyncio.timeout(PLACED_BOUND_S):
            await self._place_all()
        async with asyncio.TaskGroup() as tasks:
            busy = [
                tasks.create_task(one)
                for one in (
                    self._watch(),
                    self._publish(),
                    *(producer.run() for producer in self._producers.values()),
                )
            ]
            await asyncio.sleep(WARM_UP_S)
            await self._until_steady()
            before = await self._open()
            await asyncio.sleep((ROUNDS + 1) * self._scenario.leader.round_interval_s)
            run = await self._told(before, await self._last_round())
            for task in busy:
                task.cancel()
        return run

    async def _place_all(self) -> None:
        """Have every bundle served by the broker that the scenario names.

        A bundle that is about to be served for the first time is asked for again: as long
        as nobody has it, there is nobody to unload it from.
        """
        brokers = {member.name: member.broker for member in self._cluster.members}
        wanted = {bundle_of(load): brokers[load.placed_on[0]] for load in self._scenario.load}
        while (owners := (await self._observer.sample()).owners) != wanted:
            for bundle, broker in wanted.items():
                if owners.get(bundle, broker) != broker:
                    path = f"/admin/v2/namespaces/{bundle}/unload"
                    await self._ask("PUT", f"{path}?destinationBroker={broker}")
            await asyncio.sleep(BEAT_S)

    async def _until_steady(self) -> None:
        """Wait for some seconds in which all that was asked for was served, within a bound.

        A machine that others use may need some time to itself.
        """
        asked = sum(load.msgs_in_per_s for load in self._scenario.load)
        deadline_s = monotonic() + STEADY_BOUND_S
        while monotonic() < deadline_s:
            last = [k for k in self._looks if k.at_s > monotonic() - STEADY_S]
            served = [sum(one.msgs_per_s for one in look.brokers) for look in last]
            if all(abs(one / asked - 1) <= UNSTEADY_FRACTION for one in served):
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _open(self) -> "Round":
        """Let the leader move from the next round on; return the last one that might not.

        Done just after a round, so that there is no doubt which one comes next.
        """
        before = now = await self._last_round()
        while now.number == before.number:
            await asyncio.sleep(BEAT_S)
            now = await self._last_round()
        await self._ask("PUT", "/admin/v2/loadmanager/balancing/resume")
        self._opened_s = monotonic()
        return now

    async def _last_round(self) -> "Round":
        broker = self._cluster.members[0].broker
        told = await self._ask("GET", f"/admin/v2/loadmanager/explain?subject={broker}")
        ago_s = (self._clock.wall_ms() - told["lastRoundAtMs"]) / 1000
        return Round(told["lastRound"], monotonic() - ago_s)

    async def _told(self, before: "Round", last: "Round") -> LiveRun:
        interval_s = (last.at_s - before.at_s) / (last.number - before.number)
        told = await self._ask("GET", "/admin/v2/loadmanager/decisions?outcome=moved")
        steps = (
            Step(
                round=one["round"] - before.number,
                bundle=BundleId(one["subject"]),
                source=self._names[one["source"]],
                target=self._names[one["target"]],
            )
            for one in reversed(told["decisions"])
        )
        looks = tuple(self._by_name(look) for look in self._looks)
        asked = sum(load.msgs_in_per_s for load in self._scenario.load)
        return LiveRun(
            steps=tuple(step for step in steps if step.round <= ROUNDS),
            looks=looks,
            first_round_s=before.at_s + interval_s - self._opened_s,
            interval_s=interval_s,
            ended_s=monotonic() - self._opened_s,
            publish_errors=self._counts.publish_errors,
            publish_retries=self._counts.publish_retries,
            pauses_s=tuple(gap.lasted_s for gap in self._gaps()),
            served_fraction=fmean(k.msgs_per_s for k in looks if k.at_s > -STEADY_S) / asked,
        )

    def _gaps(self) -> list[Gap]:
        paths = [member.record_path for member in self._cluster.members]
        intervals = [one for path in paths for one in read_record(path, None)]
        bundles = [producer.bundle for producer in self._producers.values()]
        return gaps(intervals, bundles, from_s=self._opened_s, until_s=monotonic())

    async def _publish(self) -> None:
        rates = {topic_of(load): load.msgs_in_per_s for load in self._scenario.load}
        total = sum(rates.values())
        schedule = Schedule(
            {topic: rate / total for topic, rate in rates.items()},
            rate_per_s=total,
            start_s=monotonic(),
            seed=self._scenario.seed,
        )
        while True:
            for due_s, topic in schedule.due(monotonic()):
                self._producers[topic].add(due_s)
            await asyncio.sleep(BEAT_S)

    async def _watch(self) -> None:
        while True:
            self._looks.append(await self._observer.sample())
            await asyncio.sleep(LOOK_EVERY_S)

    def _by_name(self, look: ClusterSample) -> LiveLook:
        return LiveLook(
            look.at_s - self._opened_s,
            {self._names[broker]: load for broker, load in look.loads.items()},
            {one.name: one.bundles for one in look.brokers if one.bundles is not None},
        )

    async def _ask(self, method: str, path: str, body: object = None) -> Any:
        url = f"{self._cluster.members[0].sidecar_url}{path}"
        async with self._http.request(method, url, json=body) as answer:
            assert answer.status in (200, 204), f"{method} {url}: {await answer.text()}"
            return await answer.json() if answer.status == 200 else None
