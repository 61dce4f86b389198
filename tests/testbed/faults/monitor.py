"""Connects all watches of one run to the events that they check, and keeps the violations."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from loadmanager.agent.registration import Displaced
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import DEFAULT_HASH, position
from loadmanager.core.ids import BundleId, Namespace, TopicName
from loadmanager.core.wire.policies import decode_boundaries
from loadmanager.ports.lookup import Owner
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.answers_watch import AnswersWatch
from tests.testbed.faults.availability_watch import (
    LOOK_EVERY_S,
    AvailabilityWatch,
    any_broker_fit,
    served_again_within_s,
    served_when_asked_within_s,
)
from tests.testbed.faults.cluster import Cluster
from tests.testbed.faults.host import Host
from tests.testbed.faults.trace import Trace
from tests.testbed.faults.violation import Invariant, Violation
from tests.testbed.faults.watches import (
    LeaderWatch,
    OrdersWatch,
    ServingWatch,
    any_sidecar_leads,
    is_healthy,
    led_within_s,
)
from tests.testbed.memory.tree import Znode

_POLICIES = znodes.LOCAL_POLICIES + "/"


class Monitor:
    """Checks a cluster from its start; `raise_first` raises the first violation."""

    def __init__(self, cluster: Cluster, trace: Trace) -> None:
        self._cluster = cluster
        self._trace = trace
        self.violations: list[Violation] = []
        self.found = asyncio.Event()
        self._reported: set[tuple[Invariant, str]] = set()
        self.serving = ServingWatch(cluster.hosts, trace, self.report)
        self.orders = OrdersWatch(cluster.service, trace, self.report)
        self.answers = AnswersWatch(trace, self.report)
        self.availability = AvailabilityWatch(
            served_again_within_s(cluster.config),
            served_when_asked_within_s(cluster.config),
            self.report,
        )
        self.leaders = LeaderWatch(led_within_s(cluster.config), self.report)
        self._boundaries: dict[Namespace, Boundaries] = {}
        cluster.service.watchers.append(self._node_changed)

    @property
    def bundles(self) -> list[BundleId]:
        return [bundle for one in self._boundaries.values() for bundle in one.bundles]

    @property
    def namespaces(self) -> Sequence[Namespace]:
        return tuple(self._boundaries)

    def bundles_of(self, namespace: Namespace) -> tuple[BundleId, ...]:
        boundaries = self._boundaries.get(namespace)
        return boundaries.bundles if boundaries else ()

    def follow_host(self, host: Host) -> None:
        host.watchers.append(self.serving.changed)

    def follow_agent(self, agent: Agent) -> None:
        """Check a sidecar process until it ends."""
        self.orders.follow(agent)
        agent.task.add_done_callback(lambda _: self._process_ended(agent))
        agent.context.unexpected.followers.append(partial(self._error_caught, agent))

    def answer_given(self, agent: Agent, owner: Owner) -> None:
        self.availability.answered(owner.bundle)
        self.answers.answer_given(agent, owner, self._now_s())

    def asked(self, agent: Agent, topic: TopicName) -> None:
        """Record a lookup at a sidecar; only lookups at healthy sidecars count."""
        if is_healthy(agent):
            boundaries = self._boundaries.get(topic.namespace)
            if boundaries is not None:
                bundle = boundaries.at(position(topic, DEFAULT_HASH))
                self.availability.asked(bundle, self._now_s())

    def restored(self, before: Mapping[str, Znode]) -> None:
        """Restart the checks after the nodes ``before`` were replaced by an older state."""
        now_s, after = self._now_s(), self._cluster.service.nodes
        self.disturbed()
        self.serving.restored()
        self.availability.restored()
        epoch = after.get(znodes.EPOCH)
        self.orders.restored(epoch.node.stat.version if epoch else 0)
        for path in sorted(before.keys() | after.keys()):
            was, now = before.get(path), after.get(path)
            if was is not now:
                self.answers.node_changed(path, was, now, now_s)
                if _is_of_namespace(path):
                    self._boundaries_changed(path, now)

    def disturbed(self) -> None:
        self.availability.disturbed(self._now_s())
        self.leaders.disturbed(self._now_s())
        self.answers.look_at_touch(self._cluster.living, self._now_s())

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        cluster, now_s = self._cluster, self._now_s()
        self.answers.look_at_touch(cluster.living, now_s)
        living, service = cluster.living, cluster.service
        lag_s = max((agent.coordination.lag_s for agent in living), default=0.0)
        fit = not service.down and any_broker_fit(living, service.nodes)
        self.availability.look(self.bundles, cluster.hosts, fit, now_s, lag_s)
        healthy = not service.down and any(map(is_healthy, living))
        led = any_sidecar_leads(living, service.nodes)
        self.leaders.look(now_s, led=led, healthy=healthy, lag_s=lag_s)

    def raise_first(self) -> None:
        if self.violations:
            raise self.violations[0]

    def _node_changed(self, path: str, was: Znode | None, now: Znode | None) -> None:
        if _is_of_namespace(path):
            self._boundaries_changed(path, now)
        self.availability.ordered(self.orders.node_changed(path, now))
        self.answers.node_changed(path, was, now, self._now_s())

    def _boundaries_changed(self, path: str, now: Znode | None) -> None:
        namespace = Namespace(path.removeprefix(_POLICIES))
        before = self.bundles_of(namespace)
        if now is None:
            self._boundaries.pop(namespace, None)
            self.availability.forget(before)
            self._trace.add("namespace", f"{namespace} is gone")
            return
        after = decode_boundaries(path, namespace, now.node.data, now.node.stat.version)
        self._boundaries[namespace] = after
        self.availability.cut(before, after.bundles)
        self._trace.add("namespace", f"{namespace} {len(after.bundles)} bundles")

    def _error_caught(self, agent: Agent, place: str, error: BaseException) -> None:
        """Report an unexpected error after which the sidecar continued."""
        name = agent.context.identity.instance
        self.report(Invariant.NOTHING_UNHEARD, f"{name}: {place}", f"went on after {error!r}")

    def _process_ended(self, agent: Agent) -> None:
        """Report a process that ended without being stopped, killed or displaced."""
        failure = agent.failure
        name = agent.context.identity.instance
        self._trace.add("process", f"{name} ended: {failure}")
        if failure is not None and not isinstance(failure, Displaced):
            self.report(Invariant.NOTHING_UNHEARD, name, f"ended by {failure!r}")

    def report(self, invariant: Invariant, subject: str, seen: str) -> None:
        """Record a violation, once for each invariant and subject."""
        if (invariant, subject) in self._reported:
            return
        self._reported.add((invariant, subject))
        violation = Violation(invariant, self._now_s(), subject, seen)
        self._trace.add("VIOLATION", str(violation))
        self.violations.append(violation)
        self.found.set()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def _is_of_namespace(path: str) -> bool:
    return path.startswith(_POLICIES) and path.count("/") == _POLICIES.count("/") + 1
