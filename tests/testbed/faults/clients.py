"""Simulated clients: look up topics, and publish enough to load brokers unevenly."""

import asyncio
from random import Random
from typing import Final

from loadmanager.core.ids import BundleId, TopicName, parse_topic
from loadmanager.ports.broker import BrokerUnreachable
from loadmanager.ports.lookup import LookupRefused, NamespaceUnknown, Owner
from loadmanager.reference_broker.changes import Accepted
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.availability_watch import ASK_AGAIN_S, PATIENCE_S
from tests.testbed.faults.cluster import topic_of
from tests.testbed.faults.operations import NAMESPACES
from tests.testbed.faults.scene import Scene
from tests.testbed.faults.violation import Invariant

_TOPICS: Final = 8
_PUBLISH_EVERY_S: Final = 2.0
_MEAN_PAUSE_S: Final = 0.5
_IDLE_FRACTION: Final = 0.05


class Clients:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._rng = Random(scene.rng.randrange(2**32))  # noqa: S311 - to be repeatable
        self._topics = _weighed_topics(self._rng)
        self._asking: set[TopicName] = set()
        self.asked = 0
        self.refused = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ask_for_ever(), name="lookups")
            tasks.create_task(self._publish_for_ever(), name="publishing")

    async def ask(self, agent: Agent, topic: TopicName) -> Owner:
        self.asked += 1
        await agent.gate.passed()
        self._scene.monitor.asked(agent, topic)
        try:
            owner = await agent.app.answering.find_owner(topic)
        except LookupRefused:
            self.refused += 1
            raise
        self._scene.monitor.answer_given(agent, owner)
        return owner

    async def all_answered(self) -> None:
        for agent in self._scene.cluster.living:
            for bundle in self._scene.monitor.bundles:
                await self._asked_until_answered(agent, bundle)

    async def _asked_until_answered(self, agent: Agent, bundle: BundleId) -> None:
        last = ""
        for _ in range(3):
            try:
                await self.ask(agent, topic_of(bundle))
            except LookupRefused as refused:
                last = str(refused)
            else:
                return
        monitor = self._scene.monitor
        seen = f"{agent.url} does not answer after all faults: {last}"
        monitor.report(Invariant.SETTLES, bundle, seen)

    async def _ask_for_ever(self) -> None:
        topics = list(self._topics)
        while True:
            await asyncio.sleep(self._rng.expovariate(1.0 / _MEAN_PAUSE_S))
            topic = self._rng.choice(topics)
            if topic not in self._asking:
                self._asking.add(topic)
                self._scene.begin(self._ask_until_answered(topic))

    async def _ask_until_answered(self, topic: TopicName) -> None:
        """Repeat a lookup at random sidecars until it is answered or the namespace is unknown."""
        try:
            while True:
                if await self._is_answered(topic):
                    return
                await asyncio.sleep(ASK_AGAIN_S)
        finally:
            self._asking.discard(topic)

    async def _is_answered(self, topic: TopicName) -> bool:
        running = [one for one in self._scene.cluster.living if one.application is not None]
        if not running:
            return False
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.ask(self._rng.choice(running), topic)
        except NamespaceUnknown:
            return True
        except (LookupRefused, TimeoutError):
            return False
        return True

    async def _publish_for_ever(self) -> None:
        while True:
            self._publish()
            await asyncio.sleep(_PUBLISH_EVERY_S)

    def _publish(self) -> None:
        hosts = self._scene.cluster.hosts
        busy = dict.fromkeys((host.name for host in hosts), _IDLE_FRACTION)
        for topic, weight in self._topics.items():
            accepting = []
            for host in hosts:
                try:
                    answer = host.broker.publish(topic, payload_bytes=round(weight * 1_000_000))
                except BrokerUnreachable:
                    continue
                if isinstance(answer, Accepted):
                    accepting.append(host.name)
                    busy[host.name] += weight
            if len(accepting) > 1:
                seen = f"{' and '.join(accepting)} accept its messages"
                self._scene.monitor.report(Invariant.ONE_SERVER, str(topic), seen)
        for host in hosts:
            host.cpu_fraction = min(busy[host.name], 1.0)


def _weighed_topics(rng: Random) -> dict[TopicName, float]:
    """Return topics with the fraction of a broker that each uses: few large, most small."""
    topics = [
        parse_topic(f"persistent://{namespace}/topic-{number}")
        for namespace in NAMESPACES
        for number in range(_TOPICS)
    ]
    total = rng.uniform(0.3, 2.0)
    weights = [rng.paretovariate(1.2) for _ in topics]
    return {
        topic: total * weight / sum(weights) for topic, weight in zip(topics, weights, strict=True)
    }
