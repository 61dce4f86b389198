from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest

from loadmanager.agent.locks import LockCommits, LockResult, OwnedList
from loadmanager.agent.ownership import OwnershipRecords
from loadmanager.agent.registration import Membership
from loadmanager.common.context import Context, Identity
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId, parse_broker, parse_bundle, parse_namespace
from loadmanager.core.load import BrokerUrls
from loadmanager.core.orders import Orders, decode_owned
from loadmanager.core.ownership import Phase
from loadmanager.ports.coordination import Create, SessionLost
from tests.testbed.memory.client import MemoryCoordination, next_turn
from tests.testbed.memory.service import MemoryService

ME, OTHER = parse_broker("me:8080"), parse_broker("other:8080")
NAMESPACE = parse_namespace("t/n")
BOUNDARIES = Boundaries(NAMESPACE, (0x0, 0x40000000, 0x80000000, 0xFFFFFFFF), 0)
A, B, C = BOUNDARIES.bundles
NO_BUNDLE = parse_bundle("t/n/0x00000000_0xffffffff")


def identity(broker: str) -> Identity:
    return Identity(
        broker=parse_broker(broker),
        urls=BrokerUrls(http_url=f"http://{broker}", broker_url=f"pulsar://{broker}"),
        sidecar_url=f"http://{broker}",
        instance=broker,
        started_at_ms=0,
        version="1",
    )


class Clock:
    """Mends the connection of a session while its agent waits for it."""

    def __init__(self, coordination: MemoryCoordination) -> None:
        self._coordination = coordination

    def monotonic_s(self) -> float:
        return 0.0

    async def sleep(self, _duration_s: float) -> None:
        self._coordination.reconnect()


class Picture:
    def __init__(self) -> None:
        self.lists = self
        self.read: list[BrokerId] = []

    def read_list(self, broker: BrokerId) -> None:
        self.read.append(broker)

    async def boundaries(self, _namespace: str) -> Boundaries:
        return BOUNDARIES

    async def reread_boundaries(self, _namespace: str) -> None:
        """Return nothing: they are as they were."""


@dataclass(slots=True)
class Agent:
    coordination: MemoryCoordination
    commits: LockCommits
    records: OwnershipRecords
    orders: Orders | None
    picture: Picture

    async def change(
        self, takes: Sequence[BundleId], drops: Sequence[BundleId] = ()
    ) -> dict[BundleId, LockResult]:
        """Return the result for each lock; there is one, and what was given is as before."""
        given = tuple(takes), tuple(drops)
        outcomes = await self.commits.change(takes, drops)
        assert (tuple(takes), tuple(drops)) == given
        assert sorted(outcomes.results) == sorted((*takes, *drops))
        for record in map(self.records.of, outcomes.of(LockResult.TAKEN)):
            record.token = outcomes.token
            self.records.enter(record, Phase.OWNED)
        for record in map(self.records.of, outcomes.of(LockResult.DROPPED)):
            self.records.enter(record, Phase.FREE)
        return outcomes.results


async def make(service: MemoryService, broker: str = "me:8080") -> Agent:
    coordination = MemoryCoordination(service)
    await coordination.start()
    while not coordination.session.session_id:
        await next_turn()
    session_id = coordination.session.session_id
    me = parse_broker(broker)
    for folder in (znodes.OWNED, znodes.agents(me), znodes.lock_folder(A)):
        await coordination.ensure(folder)
    policies = znodes.local_policies(NAMESPACE)
    await coordination.ensure(policies)
    await coordination.commit(
        [
            Create(znodes.owned(me), b"", ephemeral=True),
            Create(znodes.agent(me, session_id), b"", ephemeral=True),
        ]
    )
    picture = Picture()
    context = cast(
        "Context",
        SimpleNamespace(
            coordination=coordination,
            clock=Clock(coordination),
            cluster_state=picture,
            identity=identity(broker),
            oversized=None,
        ),
    )
    records = OwnershipRecords()
    membership = Membership(me, session_id, 1)
    agent = Agent(coordination, cast("LockCommits", None), records, Orders(3), picture)
    owned_list = OwnedList(context, records, membership)
    agent.commits = LockCommits(context, owned_list, lambda: agent.orders, membership)
    return agent


async def test_locks_are_taken_and_dropped_together() -> None:
    service = MemoryService()
    agent = await make(service)
    assert await agent.change([A, B]) == {A: LockResult.TAKEN, B: LockResult.TAKEN}
    assert await agent.change([C], [A]) == {C: LockResult.TAKEN, A: LockResult.DROPPED}
    nodes = service.dump()
    assert znodes.lock(A) not in nodes
    own_list = nodes[znodes.owned(ME)]
    listed = decode_owned("", own_list.data, own_list.stat.mzxid)
    assert set(listed.tokens) == {B, C}
    assert listed.loading == {C}
    assert listed.tokens[C] == nodes[znodes.lock(C)].stat.czxid == agent.records.of(C).token


async def test_a_lock_of_another_broker_is_left_and_the_others_are_taken() -> None:
    service = MemoryService()
    agent, other = await make(service), await make(service, "other:8080")
    assert await other.change([B]) == {B: LockResult.TAKEN}
    before = service.dump()[znodes.lock(B)]
    assert await agent.change([A, B]) == {A: LockResult.TAKEN, B: LockResult.HELD_BY_ANOTHER}
    assert service.dump()[znodes.lock(B)] == before
    # The list says when the other broker lets go.
    assert agent.picture.read == ["other:8080"]


async def test_what_is_no_bundle_of_its_namespace_is_not_taken() -> None:
    agent = await make(MemoryService())
    assert await agent.change([NO_BUNDLE, A]) == {
        NO_BUNDLE: LockResult.NOT_A_BUNDLE,
        A: LockResult.TAKEN,
    }


async def test_while_orders_are_in_doubt_locks_are_dropped_and_none_is_taken() -> None:
    agent = await make(MemoryService())
    await agent.change([A])
    agent.orders = None
    assert await agent.change([B], [A]) == {B: LockResult.ORDERS_IN_DOUBT, A: LockResult.DROPPED}


async def test_after_a_lost_reply_the_locks_are_taken_but_not_after_a_lost_request() -> None:
    service = MemoryService()
    agent = await make(service)
    agent.coordination.lose_next_request()
    assert await agent.change([A]) == {A: LockResult.NOT_APPLIED}
    agent.coordination.lose_next_reply()
    assert await agent.change([A]) == {A: LockResult.TAKEN}
    assert agent.records.of(A).token == service.dump()[znodes.lock(A)].stat.czxid


async def test_a_batch_that_is_too_large_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    service = MemoryService()
    agent = await make(service)
    await agent.change([A])
    before = service.dump()
    monkeypatch.setattr(type(agent.coordination), "max_request_bytes", 30)
    assert await agent.change([B], [A]) == {
        B: LockResult.TAKE_TOO_LARGE,
        A: LockResult.DROP_TOO_LARGE,
    }
    assert service.dump() == before


async def test_another_agent_of_the_broker_ends_the_writing() -> None:
    service = MemoryService()
    agent = await make(service)
    await agent.coordination.delete(
        znodes.agent(ME, agent.coordination.session.session_id), version=0
    )
    with pytest.raises(SessionLost):
        await agent.commits.change([A], [])
