"""All watches of one run, hooked to what happens, and what they have found."""

import asyncio
from collections.abc import Sequence

from loadmanager.adapters.memory.tree import Znode
from loadmanager.app.leasing import Displaced
from loadmanager.core import znodes
from loadmanager.core.ids import BundleId, Namespace
from loadmanager.core.wire import decode_boundaries
from loadmanager.faults.agent import Agent
from loadmanager.faults.answers_watch import AnswersWatch
from loadmanager.faults.availability_watch import (
    LOOK_EVERY_S,
    AvailabilityWatch,
    anybody_fit,
    served_again_within_s,
)
from loadmanager.faults.cluster import Cluster
from loadmanager.faults.host import Host
from loadmanager.faults.orders_watch import OrdersWatch
from loadmanager.faults.serving_watch import ServingWatch
from loadmanager.faults.trace import Trace
from loadmanager.faults.violation import Invariant, Violation
from loadmanager.ports import Owner

_POLICIES = znodes.LOCAL_POLICIES + "/"


class Monitor:
    """Watches a cluster from its first moment; `raise_first` tells what was found."""

    def __init__(self, cluster: Cluster, trace: Trace) -> None:
        self._cluster = cluster
        self._trace = trace
        self.violations: list[Violation] = []
        self.found = asyncio.Event()
        self._told: set[tuple[Invariant, str]] = set()
        self.serving = ServingWatch(cluster.hosts, trace, self.tell)
        self.orders = OrdersWatch(cluster.service, trace, self.tell)
        self.answers = AnswersWatch(trace, self.tell)
        self.availability = AvailabilityWatch(served_again_within_s(cluster.config), self.tell)
        self._bundles: dict[Namespace, tuple[BundleId, ...]] = {}
        cluster.service.watchers.append(self._node_changed)

    @property
    def bundles(self) -> list[BundleId]:
        """The bundles of all namespaces, as their boundaries stand."""
        return [bundle for bundles in self._bundles.values() for bundle in bundles]

    @property
    def namespaces(self) -> Sequence[Namespace]:
        """The namespaces there are."""
        return tuple(self._bundles)

    def bundles_of(self, namespace: Namespace) -> tuple[BundleId, ...]:
        """Return the bundles of a namespace, none if there is none."""
        return self._bundles.get(namespace, ())

    def follow_host(self, host: Host) -> None:
        """Watch a broker."""
        host.watchers.append(self.serving.changed)

    def follow_agent(self, agent: Agent) -> None:
        """Watch a sidecar process to its end."""
        self.orders.follow(agent)
        agent.task.add_done_callback(lambda _: self._process_ended(agent))

    def answer_given(self, agent: Agent, owner: Owner) -> None:
        """Look at the answer of a lookup."""
        self.answers.answer_given(agent, owner, self._now_s())

    def disturbed(self) -> None:
        """Take note that something has just been broken."""
        self.availability.disturbed(self._now_s())
        self.answers.look_at_touch(self._cluster.living, self._now_s())

    async def run(self) -> None:
        """Look now and then at what nothing tells of, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Look at what should be served, and at who is in touch."""
        cluster, now_s = self._cluster, self._now_s()
        self.answers.look_at_touch(cluster.living, now_s)
        fit = not cluster.service.down and anybody_fit(cluster.living, cluster.service.nodes)
        lag_s = max((agent.coordination.lag_s for agent in cluster.living), default=0.0)
        self.availability.look(self.bundles, cluster.hosts, fit, now_s, lag_s)

    def raise_first(self) -> None:
        """Raise the first violation, if there was any."""
        if self.violations:
            raise self.violations[0]

    def _node_changed(self, path: str, was: Znode | None, now: Znode | None) -> None:
        if path.startswith(_POLICIES) and path.count("/") == _POLICIES.count("/") + 1:
            self._boundaries_changed(path, now)
        self.orders.node_changed(path, now)
        self.answers.node_changed(path, was, now, self._now_s())

    def _boundaries_changed(self, path: str, now: Znode | None) -> None:
        namespace = Namespace(path.removeprefix(_POLICIES))
        before = self._bundles.get(namespace, ())
        if now is None:
            self._bundles.pop(namespace, None)
            self.availability.forget(before)
            self._trace.add("namespace", f"{namespace} is gone")
            return
        after = decode_boundaries(path, namespace, now.node.data, now.node.stat.version).bundles
        self._bundles[namespace] = after
        self.availability.cut(before, after)
        self._trace.add("namespace", f"{namespace} {len(after)} bundles")

    def _process_ended(self, agent: Agent) -> None:
        """A process ends because it is asked to, killed or displaced, and for nothing else."""
        failure = agent.failure
        name = agent.parts.identity.instance
        self._trace.add("process", f"{name} ended: {failure}")
        if failure is not None and not isinstance(failure, Displaced):
            self.tell(Invariant.NOTHING_UNHEARD, name, f"ended by {failure!r}")

    def tell(self, invariant: Invariant, subject: str, seen: str) -> None:
        """Take up a violation, each once; `raise_first` raises the first."""
        if (invariant, subject) in self._told:
            return
        self._told.add((invariant, subject))
        violation = Violation(invariant, self._now_s(), subject, seen)
        self._trace.add("VIOLATION", str(violation))
        self.violations.append(violation)
        self.found.set()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
