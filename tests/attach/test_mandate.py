"""A controller that was elected acts only while its term lasts."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from balancers import Told, balanced, balancer_of
from coordination_worlds import connected
from fake_pulsar import FakePulsar
from waiting import eventually

from loadmanager.core import znodes
from loadmanager.core.bundle_task import TaskState
from loadmanager.leader.election import Deposed, Term
from loadmanager.ports.coordination import Connection, Operation, Stat
from loadmanager.pulsar.balancing import Balancer
from loadmanager.pulsar.client import Access, PulsarAdmin
from loadmanager.pulsar.orders import Elected
from loadmanager.pulsar.state import (
    SWITCHES,
    Part,
    PriorSettings,
    PulsarBalancer,
    SharedState,
    StateUnusable,
)
from tests.testbed.memory import MemoryCoordination, MemoryService

OFF = dict.fromkeys(SWITCHES, "false")


@pytest.fixture
async def leader(pulsar: FakePulsar) -> AsyncIterator[tuple[Balancer, MemoryCoordination]]:
    session = MemoryCoordination(MemoryService())
    await connected(session)
    await session.create(znodes.EPOCH, b"")
    await session.set(znodes.EPOCH, b"ours")
    admin = PulsarAdmin(Access(), known={one.name for one in pulsar.brokers})
    yield (
        balancer_of(
            pulsar,
            admin,
            SharedState(session),
            mandate=Elected(Term(1, session.session.session_id), session, "attach-a:1"),
        ),
        session,
    )
    await admin.close()
    await session.close()


def told(balancer: Balancer) -> Told:
    assert isinstance(balancer.log, Told)
    return balancer.log


async def test_where_others_wait_the_settings_stay(
    pulsar: FakePulsar, leader: tuple[Balancer, MemoryCoordination]
) -> None:
    balancer, session = leader
    await session.create(f"{znodes.ATTACH_CANDIDATES}/attach-b:1", b"", ephemeral=True)
    await balanced(balancer, 1)
    assert pulsar.dynamic == OFF
    assert await SharedState(session).read() == PriorSettings(
        format=1, dynamic=dict.fromkeys(SWITCHES), effective=dict.fromkeys(SWITCHES, "true")
    )


async def test_after_a_later_term_began_nothing_is_ordered_and_nothing_restored(
    pulsar: FakePulsar, leader: tuple[Balancer, MemoryCoordination]
) -> None:
    balancer, session = leader
    await session.set(znodes.EPOCH, b"another")
    with pytest.raises(Deposed, match="term 1 is over"):
        await balanced(balancer, 1)
    assert pulsar.unloads == []
    assert pulsar.dynamic == OFF


async def test_nothing_is_ordered_where_the_budget_cannot_be_kept(
    pulsar: FakePulsar, leader: tuple[Balancer, MemoryCoordination]
) -> None:
    balancer, session = leader
    log = told(balancer)
    log.after_round = session.suspend  # Between the decision and the orders.
    await balanced(balancer, 2)
    assert log.held == ["", "ZooKeeper does not answer"]
    assert log.tasks == []
    assert any(one.startswith("nothing moves in this round: ") for one in log.events)
    assert pulsar.unloads == []


class SuspendedBeforeOrders(SharedState):
    async def keep(self, part: Part, text: str | None) -> None:
        await super().keep(part, text)
        if part is Part.MOVES:
            assert isinstance(self.coordination, MemoryCoordination)
            self.coordination.suspend()


async def test_no_order_is_sent_while_the_session_may_be_gone(
    pulsar: FakePulsar, leader: tuple[Balancer, MemoryCoordination]
) -> None:
    balancer, session = leader
    log = told(balancer)
    balancer.pulsar_balancer = PulsarBalancer(SuspendedBeforeOrders(session))
    await balanced(balancer, 2)
    assert log.held == ["", "ZooKeeper does not answer"]
    assert {task.state for task in log.tasks} == {TaskState.FAILED}
    assert {task.note for task in log.tasks} == {"ZooKeeper does not answer"}
    assert pulsar.unloads == []
    assert pulsar.dynamic == OFF


async def test_a_lost_session_gives_no_right(leader: tuple[Balancer, MemoryCoordination]) -> None:
    balancer, session = leader
    session.expire()
    await eventually(lambda: session.session.connection is Connection.CONNECTED)
    assert await balancer.mandate.confirm() == "its session with ZooKeeper has ended"
    assert await balancer.mandate.hands_over()


async def test_an_unreadable_pause_holds(leader: tuple[Balancer, MemoryCoordination]) -> None:
    _, session = leader
    state = SharedState(session)
    assert await state.paused() == ""
    await state.pause("on leave")
    await state.pause("on longer leave")
    assert await state.paused() == "on longer leave"
    session.suspend()
    assert znodes.ATTACH_PAUSED in await state.paused()
    with pytest.raises(StateUnusable, match="expected a node that can be removed"):
        await state.resume()
    session.reconnect()
    await state.resume()
    await state.resume()
    assert await state.paused() == ""


async def test_a_write_to_the_state_whose_reply_was_lost_is_read_back(
    leader: tuple[Balancer, MemoryCoordination], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, session = leader
    state, commit = SharedState(session), session.commit
    await session.ensure(znodes.ATTACH_CANDIDATES)

    async def losing(operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        session.lose_next_reply()
        return await commit(operations)

    monkeypatch.setattr(session, "commit", losing)
    for change in (state.pause("a"), state.pause("b"), state.resume()):
        await change
    assert await state.paused() == ""


async def test_of_candidates_that_end_together_the_last_one_to_withdraw_finds_no_other(
    leader: tuple[Balancer, MemoryCoordination],
) -> None:
    balancer, session = leader
    assert isinstance(balancer.mandate, Elected)
    first, last = (replace(balancer.mandate, name=f"attach-{one}:1") for one in "ab")
    for name in ("attach-a:1", "attach-b:1"):
        await session.create(f"{znodes.ATTACH_CANDIDATES}/{name}", b"", ephemeral=True)
    assert await first.hands_over()
    assert not await last.hands_over()
    assert not await first.hands_over()
