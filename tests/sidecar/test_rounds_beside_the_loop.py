import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TypeVar, TypeVarTuple

import pytest
from leader_at_work import B1, B2, BUNDLES, EIGHT, HOT, THRESHOLD, LeaderAtWork, leader_at_work
from snapshot_samples import report
from structlog.testing import capture_logs
from waiting import eventually

from loadmanager.adapters.computing import ThreadedComputing
from loadmanager.common.balancing_mode import BalancingModeRequests
from loadmanager.core import znodes
from loadmanager.core.balancing import BalancingMode
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import LoadReport
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.orders import decode_orders
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.wire.registrations import encode_registration
from loadmanager.leader.cluster_view import REPORTS_A_TURN
from loadmanager.leader.election import TermGivenUp

Args = TypeVarTuple("Args")
T = TypeVar("T")


class Held:
    """A `Computing` whose first round of the planner that moves something is held back."""

    def __init__(self) -> None:
        self.held, self.let_go = asyncio.Event(), asyncio.Event()
        self.rounds = 0

    async def compute(self, function: Callable[[*Args], T], *args: *Args) -> T:
        found = function(*args)
        if isinstance(found, tuple) and isinstance(found[1], Plan):
            self.rounds += 1
            if found[1].moves and not self.held.is_set():
                self.held.set()
                await self.let_go.wait()
        return found


@pytest.fixture
def computing() -> Held:
    return Held()


@pytest.fixture
async def sidecar(computing: Held) -> AsyncIterator[LeaderAtWork]:
    async with leader_at_work(
        THRESHOLD,
        round_interval_s=0.05,
        reports=HOT[:2],
        build=lambda one: replace(one, computing=computing),
    ) as at_work:
        yield at_work


async def ordered_to(sidecar: LeaderAtWork, broker: BrokerId) -> frozenset[BundleId]:
    node = await sidecar.hand.get(znodes.orders(broker))
    return frozenset(decode_orders("", node.data).bundles) if node and node.data else frozenset()


async def paused(sidecar: LeaderAtWork) -> None:
    await BalancingModeRequests(sidecar.context).put(BalancingMode.PAUSED, by="ann", reason="")
    await eventually(lambda: sidecar.leader_term.steering.balancing.mode is BalancingMode.PAUSED)


async def draining(sidecar: LeaderAtWork) -> None:
    other = replace(HOT[1], draining=True)
    await sidecar.write(znodes.registration(B2), encode_registration(other))
    await eventually(lambda: sidecar.context.cluster_state.brokers[B2].registration.draining)


async def restarted(sidecar: LeaderAtWork) -> None:
    other = replace(HOT[1], started_at_ms=HOT[1].started_at_ms + 1)
    await sidecar.write(znodes.registration(B2), encode_registration(other))
    began_ms = other.started_at_ms
    known = sidecar.context.cluster_state.brokers
    await eventually(lambda: known[B2].registration.started_at_ms == began_ms)


async def gone(sidecar: LeaderAtWork) -> None:
    await sidecar.hand.delete(znodes.registration(B2))
    await eventually(lambda: B2 not in sidecar.context.cluster_state.brokers)


async def other_settings(sidecar: LeaderAtWork) -> None:
    now = sidecar.settings.now
    settings = replace(now.planner.settings, shedding=False)
    sidecar.settings.now = replace(now, planner=replace(now.planner, settings=settings))


CHANGES = {
    paused: "the balancing mode changed",
    other_settings: "the balancing mode changed",
    draining: "b2:8080 is draining now",
    restarted: "b2:8080 restarted meanwhile",
    gone: "b2:8080 left meanwhile",
}


@pytest.mark.parametrize(("change", "why"), CHANGES.items())
async def test_moves_that_would_not_be_decided_any_more_are_not_ordered(
    sidecar: LeaderAtWork,
    computing: Held,
    change: Callable[[LeaderAtWork], Awaitable[None]],
    why: str,
) -> None:
    sidecar.lead()
    await computing.held.wait()
    await change(sidecar)
    with capture_logs() as logs:
        computing.let_go.set()
        await sidecar.rounds(1)
        await eventually(lambda: [one for one in logs if one["event"] == "bundle.move.outdated"])
    assert all(why in one["why"] for one in logs if one["event"] == "bundle.move.outdated")
    assert await ordered_to(sidecar, B2) == frozenset()


async def test_a_bundle_that_people_moved_meanwhile_stays_where_they_want_it(
    sidecar: LeaderAtWork, computing: Held
) -> None:
    sidecar.lead()
    await computing.held.wait()
    term = sidecar.leader_term
    refused = await term.order_unload(dict.fromkeys(BUNDLES, B1), B2)
    assert not refused
    asked = {task.number for task in term.tasks.tasks}
    computing.let_go.set()
    await eventually(lambda: computing.rounds > 1)
    assert {task.number for task in term.tasks.tasks} <= asked
    assert await ordered_to(sidecar, B2) == set(BUNDLES)


async def test_what_is_placed_meanwhile_counts(sidecar: LeaderAtWork, computing: Held) -> None:
    sidecar.lead()
    await computing.held.wait()
    await sidecar.leader_term.order_unload({BUNDLES[0]: B1}, B2)
    computing.let_go.set()
    await sidecar.rounds(1)
    assert BUNDLES[0] in sidecar.leader_term.look().memory.moved_at_s


async def test_a_term_that_has_ended_orders_nothing(sidecar: LeaderAtWork, computing: Held) -> None:
    sidecar.lead()
    await computing.held.wait()
    await asyncio.wait_for(sidecar.stop_leading(), 5)
    computing.let_go.set()
    await asyncio.sleep(0.1)
    assert await ordered_to(sidecar, B2) == frozenset()


async def test_a_leader_moves_bundles_with_rounds_in_a_thread() -> None:
    async with leader_at_work(
        THRESHOLD, build=lambda one: replace(one, computing=ThreadedComputing())
    ) as sidecar:
        await sidecar.create_namespace(EIGHT)
        await sidecar.report(*HOT)
        sidecar.lead()

        async def moved() -> bool:
            return bool(await ordered_to(sidecar, B2))

        for _ in range(200):
            if await moved():
                break
            await asyncio.sleep(0.02)
        assert await moved()
        await eventually(lambda: sidecar.leader_term.optimality_watch.last)


async def test_a_leader_whose_rounds_hang_gives_up_its_term_and_blames_no_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_go = threading.Event()
    monkeypatch.setattr(Planner, "round", lambda *_, **__: let_go.wait(30))
    computing = ThreadedComputing(longest_s=0.05)
    try:
        async with leader_at_work(
            THRESHOLD, build=lambda one: replace(one, computing=computing)
        ) as sidecar:
            await sidecar.report(*HOT)
            sidecar.lead()
            assert sidecar.working is not None
            with pytest.raises(BaseExceptionGroup) as given_up:
                await asyncio.wait_for(sidecar.working, 20)
            assert given_up.group_contains(TermGivenUp, match="3 rounds in a row")
            assert sidecar.registry.get_sample_value("loadmanager_brokers_left_out") == 0.0
    finally:
        let_go.set()


async def test_reports_are_taken_between_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sidecar of a leader of a thousand brokers answers lookups meanwhile."""
    brokers = [BrokerId(f"b{number}:8080") for number in range(3 * REPORTS_A_TURN)]
    never_s = 3600.0
    async with leader_at_work(
        THRESHOLD, tick_interval_s=never_s, round_interval_s=never_s
    ) as at_work:
        at_work.lead()
        await eventually(lambda: at_work.leading.leader_term and at_work.leader_term.is_open)
        await at_work.report(*(report(one, 0.1, {}) for one in brokers))
        taken: list[LoadReport] = []
        whole = LoadTracker.report

        def noted(tracker: LoadTracker, one: LoadReport, at_s: float) -> None:
            taken.append(one)
            whole(tracker, one, at_s)

        monkeypatch.setattr(LoadTracker, "report", noted)
        builder = at_work.leader_term._view_builder
        taking = asyncio.create_task(builder.take_reports_in_turns())
        await asyncio.sleep(0)
        assert [one.broker for one in taken] == brokers[:REPORTS_A_TURN]
        newer = report(brokers[-1], 0.2, {})
        known = at_work.context.cluster_state.loads._reports
        known[newer.broker] = replace(known[newer.broker], report=newer)
        builder.take_reports()  # As for a placement.
        await taking
        assert sorted(one.broker for one in taken) == sorted(brokers)
        assert taken[-1] == newer
