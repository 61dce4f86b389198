"""A simulated cluster: sidecars, brokers and the coordination service, in virtual time.

The sidecars are the real application with in-memory adapters. After each run it is checked that
no two brokers served a bundle at the same time, that fencing tokens and epochs only grew, and
that no exception was lost.
"""

import asyncio
import functools
import inspect
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import structlog

from loadmanager.common.cluster_state import UNREAD_FOR_S
from loadmanager.config import Config
from loadmanager.core import znodes
from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskKind
from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import DEFAULT_HASH, lies_in, position
from loadmanager.core.ids import (
    BrokerId,
    BundleId,
    Namespace,
    TopicName,
    namespace_of,
    parse_broker,
    parse_topic,
)
from loadmanager.core.orders import Orders, decode_orders
from loadmanager.core.plan import Cause
from loadmanager.core.wire.policies import encode_boundaries
from loadmanager.leader.term import LeaderTerm
from loadmanager.ports.coordination import Connection, CoordinationError
from loadmanager.ports.lookup import NotLeader
from loadmanager.reference_broker.changes import overlaps
from tests.testbed.faults.agent import Agent, World
from tests.testbed.faults.host import Host
from tests.testbed.faults.trace import listen
from tests.testbed.faults.violation import Invariant, Violation
from tests.testbed.faults.virtual_time import run
from tests.testbed.memory import MemoryCoordination


def topic_in(boundaries: Boundaries, bundle: BundleId) -> TopicName:
    if bundle not in boundaries.bundles:
        raise ValueError(f"{bundle} is none of {boundaries.bundles}")
    return topic_of(bundle)


@functools.lru_cache(maxsize=10_000)
def topic_of(bundle: BundleId) -> TopicName:
    for number in range(1_000_000):
        topic = parse_topic(f"persistent://{namespace_of(bundle)}/topic-{number}")
        if lies_in(position(topic, DEFAULT_HASH), bundle):
            return topic
    raise AssertionError(f"no topic falls in {bundle}")


__all__ = ["NAMESPACE", "Cluster", "make_config", "order", "play", "topic_in"]
NAMESPACE = Namespace("acme/orders")
SERVED_WITHIN_S: Final = 30.0
"""All bundles are served under the tokens of their locks in this time after the last fault."""


@dataclass(slots=True)
class Cluster(World):
    log_entries: list[Mapping[str, Any]] = field(default_factory=list)
    """Every log event of level info or above."""
    _operator: MemoryCoordination | None = None

    def add_host(self) -> Host:
        host = Host(parse_broker(f"broker{len(self.hosts)}:8080"), self.rng)
        self.hosts.append(host)
        return host

    def start(self, host: Host) -> Agent:
        agent = Agent(self, host, len(self.agents))
        self.agents.append(agent)
        return agent

    def agent_of(self, broker: BrokerId) -> Agent:
        return next(a for a in reversed(self.agents) if a.host.name == broker)

    @property
    def leader(self) -> Agent:
        holder = self.service.dump()[znodes.LEADER].stat.ephemeral_owner
        return next(a for a in self.living if a.coordination.session.session_id == holder)

    @property
    def leader_term(self) -> LeaderTerm:
        """The term of the leader; raises `NotLeader` until the leader has begun it."""
        leader_term = self.leader.app.leading.leader_term
        if leader_term is None:
            raise NotLeader("the elected sidecar has not begun to lead")
        return leader_term

    async def until(
        self, condition: Callable[[], object], within_s: float = 30.0, every_s: float = 0.01
    ) -> None:
        """Return once ``condition()`` is true; fail with its source after ``within_s``."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + within_s
        while not condition():
            if loop.time() > deadline_s:
                source = inspect.getsource(condition).strip()
                raise AssertionError(f"not within {within_s} s: {source}")
            await asyncio.sleep(every_s)

    async def ready(self, within_s: float = 30.0) -> None:
        """Return once every running sidecar is registered and follows a working leader."""
        await self.until(
            lambda: (
                all(
                    agent.application
                    and agent.app.member.registered
                    and agent.app.answering.readiness().ready
                    and len(agent.cluster_state.brokers) == len({a.host.name for a in self.living})
                    for agent in self.living
                )
                and any(
                    agent.app.leading.leader_term
                    and len(agent.cluster_state.loads.reports) == len(agent.cluster_state.brokers)
                    for agent in self.living
                )
            ),
            within_s,
        )

    async def operator(self) -> MemoryCoordination:
        """Return a session that belongs to no sidecar, for changes of nodes by hand."""
        if self._operator is None:
            self._operator = MemoryCoordination(self.service)
            await self._operator.start()
            operator = self._operator
            await self.until(lambda: operator.session.connection is Connection.CONNECTED)
        return self._operator

    async def write(self, path: str, data: bytes) -> None:
        operator = await self.operator()
        await operator.ensure(path)
        await operator.set(path, data)

    async def delete(self, path: str) -> None:
        await (await self.operator()).delete(path)

    async def make_namespace(self, bundles: int = 4, name: Namespace = NAMESPACE) -> Boundaries:
        boundaries = Boundaries.even(name, bundles)
        operator = await self.operator()
        await operator.create(znodes.local_policies(name), encode_boundaries(boundaries))
        return boundaries

    async def hold_lock(self, bundle: BundleId) -> None:
        """Create the lock of a bundle, without serving the bundle."""
        operator = await self.operator()
        await operator.create(znodes.lock(bundle), b"{}", ephemeral=True)

    async def move(self, bundle: BundleId, target: Host) -> None:
        await order(self.leader_term, {bundle: target.name})

    async def moved(self, bundle: BundleId, target: Host) -> None:
        """Move a bundle; returns when its target alone serves it."""
        await self.move(bundle, target)
        await self.until(lambda: self.servers(bundle) == [target])

    async def move_surely(self, bundle: BundleId, target: Host) -> None:
        while True:
            try:
                return await self.move(bundle, target)
            except (CoordinationError, NotLeader):
                await asyncio.sleep(0.5)

    def orders(self, host: Host) -> Orders:
        path = znodes.orders(host.name)
        node = self.service.dump().get(path)
        return decode_orders(path, node.data) if node else Orders(0)

    def lock_sessions(self) -> dict[BundleId, int]:
        prefix = znodes.LOCKS + "/"
        return {
            BundleId(path.removeprefix(prefix)): node.stat.ephemeral_owner
            for path, node in self.service.dump().items()
            if path.startswith(prefix) and node.stat.ephemeral_owner
        }

    def servers(self, bundle: BundleId) -> list[Host]:
        return [host for host in self.hosts if bundle in host.serving]

    def server(self, bundle: BundleId) -> Host:
        (host,) = self.servers(bundle)
        return host

    def unsettled(self, bundles: Sequence[BundleId]) -> str:
        """Return the first deviation from the settled state, "" if there is none.

        In the settled state each bundle is served by one broker under the token of its lock, and
        the cluster state of every running sidecar names that broker.
        """
        return next(self._unserved(bundles), "") or next(self._wrong_beliefs(bundles), "")

    def _unserved(self, bundles: Sequence[BundleId]) -> Iterator[str]:
        nodes, locks = self.service.dump(), self.lock_sessions()
        for stray in locks.keys() - set(bundles):
            yield f"{stray}: a lock that was not requested"
        for bundle in bundles:
            servers = self.servers(bundle)
            if len(servers) != 1:
                yield f"{bundle}: served by {[host.name for host in servers]}"
                continue
            token = servers[0].serving[bundle]
            lock = nodes.get(znodes.lock(bundle))
            if lock is None or lock.stat.czxid != token:
                yield f"{bundle}: served under {token}, lock is {lock and lock.stat}"

    def _wrong_beliefs(self, bundles: Sequence[BundleId]) -> Iterator[str]:
        for bundle in bundles:
            host = self.server(bundle)
            for agent in self.living:
                holding = agent.cluster_state.live_owner(bundle)
                served = (host.name, host.serving[bundle])
                if holding is None or (holding.broker, holding.fencing_token) != served:
                    yield f"{bundle}: {agent.context.identity.instance} believes {holding}"

    async def settled(self, bundles: Sequence[BundleId], within_s: float = SERVED_WITHIN_S) -> None:
        """Return once the cluster is settled; raises Violation."""
        await self.settled_at_last(lambda: bundles, within_s)

    async def settled_at_last(
        self, bundles: Callable[[], Sequence[BundleId]], within_s: float = SERVED_WITHIN_S
    ) -> None:
        loop = asyncio.get_running_loop()
        deadline_s, all_served = loop.time() + within_s, False
        while fault := self.unsettled(bundles()):
            if not all_served and not next(self._unserved(bundles()), ""):
                deadline_s, all_served = deadline_s + UNREAD_FOR_S, True
            if loop.time() > deadline_s:
                raise Violation(Invariant.SETTLES, loop.time(), "after the faults", fault)
            await asyncio.sleep(0.1)

    def check(self) -> None:
        """Raise a `Violation` if an invariant was broken at any time of the run."""
        intervals = [interval for host in self.hosts for interval in host.intervals()]
        now_s = asyncio.get_running_loop().time()
        for overlap in overlaps(intervals):
            raise Violation(Invariant.ONE_SERVER, now_s, overlap.second.bundle, str(overlap))
        tokens: dict[BundleId, list[int]] = defaultdict(list)
        # A restore of older data also sets the transaction ids back.
        comparable = [one for one in intervals if one.start_s >= self.service.restored_at_s]
        for interval in sorted(comparable, key=lambda one: (one.start_s, one.fencing_token)):
            tokens[interval.bundle].append(interval.fencing_token)
        for bundle, seen in tokens.items():
            if seen != sorted(seen):
                raise Violation(Invariant.TOKENS_GROW, now_s, bundle, f"fencing tokens {seen}")
        epochs = self.service.epochs
        if epochs != sorted(set(epochs)):
            raise Violation(Invariant.TOKENS_GROW, now_s, znodes.LEADER, f"epochs {epochs}")

    def warnings(self, event: str) -> list[Mapping[str, Any]]:
        return [entry for entry in self.log_entries if entry["event"] == event]

    async def close(self) -> None:
        for host in self.hosts:
            host.thaw_broker()
        for agent in self.living:
            await agent.kill()
        if self._operator is not None:
            await self._operator.close()


async def order(leader_term: LeaderTerm, moves: Mapping[BundleId, BrokerId]) -> None:
    """Order moves at a leader as an operator; raises as `TaskController.dispatch`."""
    await leader_term.tasks.dispatch(
        [
            BundleTask(
                kind=TaskKind.MOVE,
                bundles=(bundle,),
                source=None,
                target=target,
                cause=Cause.REQUESTED,
                asked_by=AskedBy.PEOPLE,
                planned={
                    b: leader_term.tasks.assigned[b]
                    for b in {bundle} & leader_term.tasks.assigned.keys()
                },
            )
            for bundle, target in moves.items()
        ]
    )


def make_config(**sections: Mapping[str, Any]) -> Config:
    """Return a configuration with short intervals; ``sections`` override single keys."""
    given: dict[str, dict[str, Any]] = {
        "broker": {"id": "broker0:8080", "http_url": "http://broker0:8080"},
        "report": {"sample_interval_s": 1.0, "min_interval_s": 1.0, "max_interval_s": 10.0},
        "leader": {
            "round_interval_s": 2.0,
            "tick_interval_s": 1.0,
            "settle_s": 2.0,
            "report_stale_s": 30.0,
        },
        "shedding": {"strategy": "ThresholdShedder"},
        "placement": {"strategy": "LeastLongTermMessageRate"},
    }
    for section, keys in sections.items():
        given.setdefault(section, {}).update(keys)
    return Config.model_validate(given)


def play(
    story: Callable[[Cluster], Awaitable[None]],
    sidecars: int = 3,
    *,
    seed: int = 1,
    checked: bool = True,
    config: Config | None = None,
) -> None:
    async def program() -> None:
        cluster = Cluster(config or make_config(), Random(seed))  # noqa: S311 - to be repeatable
        listen(cluster.log_entries.append)
        try:
            for _ in range(sidecars):
                cluster.start(cluster.add_host())
            if sidecars:
                await cluster.ready()
            await story(cluster)
            if checked:
                cluster.check()
        finally:
            await cluster.close()

    try:
        run(program())
    finally:
        structlog.reset_defaults()
