import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest
from leader_at_work import B1, B2, B3, HOT, ME, THRESHOLD, LeaderAtWork, leader_at_work
from waiting import eventually

from loadmanager.common.balancing_mode import BalancingModeRequests
from loadmanager.core import znodes
from loadmanager.core.balancing import Balancing, BalancingMode
from loadmanager.core.orders import decode_orders
from loadmanager.core.plan import Reason
from loadmanager.core.wire.records import LeaderRecord
from loadmanager.leader.preview import preview_round
from loadmanager.ports.administration import Unfit
from loadmanager.ports.leading import DecisionFilter, LeaderElsewhere, PlanOverrides
from loadmanager.ports.lookup import Unavailable


@pytest.fixture
async def sidecar() -> AsyncIterator[LeaderAtWork]:
    async with leader_at_work(THRESHOLD, reports=HOT) as at_work:
        yield at_work


@pytest.fixture
async def idle() -> AsyncIterator[LeaderAtWork]:
    async with leader_at_work(THRESHOLD, round_interval_s=3600, reports=HOT) as at_work:
        yield at_work


async def orders_away(sidecar: LeaderAtWork) -> int:
    found = 0
    for broker in (B2, B3):
        node = await sidecar.hand.get(znodes.orders(broker))
        found += len(decode_orders("", node.data).bundles) if node and node.data else 0
    return found


async def test_a_paused_leader_moves_nothing_and_says_why(sidecar: LeaderAtWork) -> None:
    steering = BalancingModeRequests(sidecar.context)
    await steering.put(BalancingMode.PAUSED, by="ann", reason="new disks")
    sidecar.lead()
    await sidecar.rounds(5)
    assert await orders_away(sidecar) == 0
    account = sidecar.explainer.explain(B1)
    assert account.balancing.mode is BalancingMode.PAUSED
    assert (account.balancing.by, account.balancing.reason) == ("ann", "new disks")
    assert Reason.SHEDDING_OFF in {one.reason for one in account.explanation.grounds}
    shown = {
        mode: sidecar.registry.get_sample_value("loadmanager_balancing", {"mode": mode})
        for mode in ("active", "observing", "paused")
    }
    assert shown == {"active": 0, "observing": 0, "paused": 1}
    # The next leader rests, too, until it is resumed.
    await sidecar.stop_leading()
    sidecar.lead()
    await sidecar.rounds(2)
    assert sidecar.leader_term.look().balancing.mode is BalancingMode.PAUSED
    assert await orders_away(sidecar) == 0
    await steering.put(BalancingMode.ACTIVE, by="", reason="")
    async with asyncio.timeout(30):
        while not await orders_away(sidecar):  # noqa: ASYNC110 - another task orders
            await asyncio.sleep(0.01)


async def test_an_observing_leader_enters_moves_and_orders_none(sidecar: LeaderAtWork) -> None:
    await BalancingModeRequests(sidecar.context).put(BalancingMode.OBSERVING, by="", reason="")
    sidecar.lead()

    def observed() -> bool:
        wish = DecisionFilter(limit=1, outcome="observed")
        return bool(sidecar.leading.leader_term and sidecar.explainer.decisions(wish))

    await eventually(observed)
    assert await orders_away(sidecar) == 0


async def test_a_mode_that_stands_keeps_who_wanted_it_first(idle: LeaderAtWork) -> None:
    steering = BalancingModeRequests(idle.context)
    assert await steering.state() == Balancing()
    await steering.put(BalancingMode.PAUSED, by="ann", reason="")
    await steering.put(BalancingMode.PAUSED, by="bob", reason="")
    state = await steering.state()
    assert (state.mode, state.by) == (BalancingMode.PAUSED, "ann")
    assert state.since_ms > 0


async def test_spoilt_content_pauses_who_never_read_any_other(sidecar: LeaderAtWork) -> None:
    await sidecar.write(znodes.BALANCING, b"{}")
    sidecar.lead()
    await sidecar.rounds(3)
    assert sidecar.leader_term.look().balancing.mode is BalancingMode.PAUSED
    assert await orders_away(sidecar) == 0
    with pytest.raises(Unavailable):
        await BalancingModeRequests(sidecar.context).state()
    await BalancingModeRequests(sidecar.context).put(BalancingMode.ACTIVE, by="", reason="")
    await eventually(lambda: sidecar.leader_term.look().balancing.mode is BalancingMode.ACTIVE)


async def test_a_preview_shows_the_next_moves_and_makes_none(idle: LeaderAtWork) -> None:
    idle.lead()
    await eventually(lambda: idle.leading.leader_term and idle.leader_term.look().averages)
    before = idle.leader_term.look().memory
    preview_now = partial(preview_round, idle.leading)
    preview = await preview_now(PlanOverrides())
    assert {move.source for move in preview.plan.moves} == {B1}
    assert idle.leader_term.look().memory == before
    assert await orders_away(idle) == 0
    assert (await preview_now(PlanOverrides())).plan.moves == preview.plan.moves


async def test_another_strategy_or_setting_is_tried_on_the_same_view(idle: LeaderAtWork) -> None:
    idle.lead()
    await eventually(lambda: idle.leading.leader_term and idle.leader_term.look().averages)
    preview_now = partial(preview_round, idle.leading)
    preview = await preview_now(PlanOverrides(shedder="overload"))
    assert preview.in_force.shedder
    assert preview.in_force.shedder.strategy == "overload"
    none = await preview_now(PlanOverrides(settings=("moves_per_round=0",)))
    assert none.plan.moves == ()
    assert Reason.ROUND_BUDGET in {one.reason for one in none.plan.refusals}
    for wish in (PlanOverrides(shedder="none"), PlanOverrides(settings=("threshold=x",))):
        with pytest.raises(Unfit):
            await preview_now(wish)


async def test_only_the_leader_tells_what_it_would_do(idle: LeaderAtWork) -> None:
    preview_now = partial(preview_round, idle.leading)
    with pytest.raises(Unavailable):
        await preview_now(PlanOverrides())
    await idle.elect(
        LeaderRecord(
            broker=B2, service_url="", sidecar_url="http://b2:7750", instance="other", epoch=3
        )
    )
    with pytest.raises(LeaderElsewhere):
        await preview_now(PlanOverrides())
    assert ME == B1
