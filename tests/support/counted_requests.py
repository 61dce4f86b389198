"""A cluster in virtual time whose service counts what each sidecar asks of it."""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from random import Random

from loadmanager.common.cluster_state import READ_AHEAD
from loadmanager.config import Config
from loadmanager.ports.coordination import (
    ArmedTrigger,
    Check,
    Create,
    Node,
    Operation,
    SetData,
    Stat,
    Trigger,
)
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import Cluster
from tests.testbed.faults.service import TimedService


class CountingService(TimedService):
    """Counts requests, and the bytes of nodes in them, by session and by what they are.

    A read is named ``get``, ``exists`` or ``children`` with the folder that it is in, such as
    ``get /loadbalance/owned``; a heartbeat ``heartbeat``, any other transaction ``write``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[tuple[int, str]] = Counter()
        self.read_bytes: Counter[int] = Counter()
        self.written_bytes: Counter[int] = Counter()

    def forget(self) -> None:
        for counter in (self.requests, self.read_bytes, self.written_bytes):
            counter.clear()

    def asked_by(self, agents: Iterable[Agent]) -> Counter[str]:
        sessions = {agent.coordination.session.session_id for agent in agents}
        asked: Counter[str] = Counter()
        for (session_id, name), count in self.requests.items():
            if session_id in sessions:
                asked[name] += count
        return asked

    def bytes_of(self, agents: Iterable[Agent]) -> int:
        sessions = [agent.coordination.session.session_id for agent in agents]
        return sum(self.read_bytes[one] + self.written_bytes[one] for one in sessions)

    def watches_of(self, agents: Iterable[Agent]) -> int:
        sessions = {agent.coordination.session.session_id for agent in agents}
        armed = self.main.triggers.by_place.values()
        return sum(1 for triggers in armed for session_id, _ in triggers if session_id in sessions)

    def get(self, session_id: int, path: str, trigger: Trigger | None = None) -> Node:
        self.requests[session_id, f"get {_folder(path)}"] += 1
        node = super().get(session_id, path, trigger)
        self.read_bytes[session_id] += len(node.data)
        return node

    def exists(self, session_id: int, path: str, trigger: Trigger | None = None) -> Stat | None:
        self.requests[session_id, f"exists {_folder(path)}"] += 1
        return super().exists(session_id, path, trigger)

    def children(
        self, session_id: int, path: str, trigger: Trigger | None = None
    ) -> tuple[str, ...]:
        self.requests[session_id, f"children {_folder(path)}"] += 1
        names = super().children(session_id, path, trigger)
        self.read_bytes[session_id] += sum(map(len, names))
        return names

    def rearm(self, session_id: int, since_zxid: int, triggers: Sequence[ArmedTrigger]) -> None:
        self.requests[session_id, "rearm"] += 1
        super().rearm(session_id, since_zxid, triggers)

    def sync(self, session_id: int) -> None:
        self.requests[session_id, "sync"] += 1
        super().sync(session_id)

    def apply(self, session_id: int, operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        changes = [one for one in operations if not isinstance(one, Check)]
        self.requests[session_id, "write" if changes else "heartbeat"] += 1
        self.written_bytes[session_id] += sum(
            len(one.data) for one in changes if isinstance(one, Create | SetData)
        )
        return super().apply(session_id, operations)


@asynccontextmanager
async def counted_cluster(
    sidecars: int, *, read_ahead: int = READ_AHEAD
) -> AsyncIterator[tuple[Cluster, CountingService]]:
    service = CountingService()
    cluster = Cluster(counted_config(), Random(1), service=service)  # noqa: S311 - to be repeatable
    cluster.read_ahead = lambda: read_ahead
    try:
        for _ in range(sidecars):
            cluster.start(cluster.add_host())
        await cluster.ready(within_s=120.0)
        yield cluster, service
        cluster.check()
    finally:
        await cluster.close()


def counted_config() -> Config:
    return Config.model_validate(
        {"broker": {"id": "broker0:8080", "http_url": "http://broker0:8080"}}
    )


def by_role(cluster: Cluster) -> dict[str, list[Agent]]:
    first = cluster.leader.cluster_state.successors
    roles: dict[str, list[Agent]] = {"leader": [], "successor": [], "other": []}
    for agent in cluster.living:
        succeeds = "successor" if agent.host.name in first else "other"
        roles["leader" if agent is cluster.leader else succeeds].append(agent)
    return roles


def _folder(path: str) -> str:
    return "/".join(path.split("/")[:3])
