"""Limits that hold moves: whom they hold, for how long, and where they are seen."""

import asyncio
import json
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from attach_process import attached, event, free_port
from balancers import Told, balanced, balancer_of
from fake_pulsar import FakePulsar

from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.core.move_limits import Begun, HeldReason, MoveBudget, MoveLimits
from loadmanager.pulsar.balancing import Balancer
from loadmanager.pulsar.client import Access, PulsarAdmin
from loadmanager.pulsar.held_brokers import NOT_SERVED_S, Changes, HeldTargets
from loadmanager.pulsar.moves import BundleMover
from loadmanager.pulsar.observation import Rules, Strategy
from loadmanager.pulsar.state import Part, State, StateUnusable, StoredBudget, state_file
from tests.attach.conftest import BOUNDARIES, attach
from tests.attach.test_attach_page import until

A, B, C = (BrokerId(f"broker-{name}:8080") for name in "abc")


@pytest.mark.parametrize(
    ("changes", "at_s", "settles", "held", "lost"),
    [
        ([(0, "abc"), (100, "abc")], 110, False, [], []),
        ([(0, "ab"), (100, "abc")], 110, True, [], []),
        ([(0, "abc"), (100, "ab")], 110, True, [], [C]),
        ([(0, "abc"), (100, "ab"), (150, "abc")], 260, True, [], []),
        ([(0, "abc"), (100, "ab"), (150, "abc")], 280, False, [], []),
        ([(0, "abc"), (100, "ab"), (150, "abc"), (300, "ab")], 310, False, [C], [C]),
        ([(0, "abc"), (100, "ab"), (150, "abc"), (300, "ab"), (340, "abc")], 570, False, [C], []),
        ([(0, "abc"), (100, "ab"), (150, "abc"), (300, "ab"), (340, "abc")], 590, False, [], []),
        ([(0, "abc"), (100, "c"), (110, "C"), (500, "c")], 510, False, [C], []),
        ([(0, "abc"), (100, "c"), (4000, "c")], 4010, True, [], []),
        ([(0, "abc"), (100, "c"), (400, "c"), (410, "b")], 420, True, [C], []),
    ],
)
def test_a_broker_that_changes_again_and_again_holds_itself_alone(
    changes: list[tuple[float, str]],
    at_s: float,
    *,
    settles: bool,
    held: list[BrokerId],
    lost: list[BrokerId],
) -> None:
    """Each change is of the brokers that are listed, or of one of them that has restarted."""
    noted, by_name = Changes(settle_s=120.0), {"a": A, "b": B, "c": C}
    for then_s, names in changes:
        if len(names) > 1:
            noted.listed([by_name[one] for one in names], then_s)
        elif names.islower():
            noted.restarted(by_name[names], then_s)
    assert (at_s < noted.last_s + 120.0) is settles
    assert list(noted.held(at_s)) == held
    assert list(noted.lost(at_s)) == lost


class CountingRate(Strategy):
    """Counts the rounds in which its choice was to be carried out."""

    recorded = 0

    def record_choice(self) -> None:
        self.recorded += 1


async def rounds(
    pulsar: FakePulsar, state: State, count: int, told: Told | None = None, **more: Any
) -> tuple[Told, Balancer, CountingRate]:
    admin, told, strategy = PulsarAdmin(Access()), told or Told(), CountingRate()
    parts = {"interval_s": 0.05, "log": told, "strategy": strategy, **more}
    balancer = balancer_of(pulsar, admin, state, **parts)
    await balanced(balancer, count)
    await admin.close()
    return told, balancer, strategy


@pytest.fixture
def state(tmp_path: Path) -> State:
    return state_file(tmp_path, "research")


@pytest.mark.parametrize(
    ("limit", "reason", "why"),
    [
        ("budget", HeldReason.BUDGET, "2 moves an hour"),
        ("pause", HeldReason.PAUSED, "paused by ann"),
    ],
)
async def test_a_limit_is_in_the_verdict_and_uses_up_nothing_of_the_strategy(
    pulsar: FakePulsar, state: State, limit: str, reason: HeldReason, why: str
) -> None:
    budget = MoveBudget(MoveLimits(per_hour=2))
    if limit == "pause":
        await state.pause(why)
    told, _, strategy = await rounds(pulsar, state, 3, budget=budget)
    last = told.seen[-1]
    assert (dict(last.holds), told.held[-1]) == ({reason: why}, why)
    assert last.verdict.endswith(f"; held: {why}")
    assert strategy.recorded == sum(not held for held in told.held)
    assert len(pulsar.unloads) == (2 if limit == "budget" else 0)


async def test_the_budget_counts_unloads_that_were_sent(pulsar: FakePulsar, state: State) -> None:
    first, _, third = pulsar.brokers
    for name in first.owned[:1]:
        first.refuses(f"/admin/v2/namespaces/{name}/unload", 500, "busy")
    third.tells("/admin/v2/brokers/ready", "starting")
    budget = MoveBudget(MoveLimits())
    told, _, _ = await rounds(pulsar, state, 1, budget=budget)
    sent = sum(path.endswith("/unload") for path in first.asked)
    to_third = [one for one in told.tasks if one.target == third.name and one.state.ended]
    assert to_third
    assert {one.state.value for one in to_third} == {"failed"}
    assert sum(one.count for one in budget.begun(0.0)) == sent


@pytest.mark.parametrize(("topics_at_once", "most"), [(1, 1), (5000, 2)])
async def test_moves_at_once_are_bounded_by_topics(
    pulsar: FakePulsar, state: State, topics_at_once: int, most: int
) -> None:
    budget = MoveBudget(MoveLimits(at_once=2, topics_at_once=topics_at_once))
    told, _, _ = await rounds(pulsar, state, 1, budget=budget)
    live, peak = set[int](), 0
    for one in told.tasks:
        (live.discard if one.state.ended else live.add)(one.number)
        peak = max(peak, len(live))
    assert peak == most


@pytest.mark.parametrize(("used", "moved"), [(0, 5), (3, 0)])
async def test_bundles_without_traffic_use_half_of_the_hours_moves(
    pulsar: FakePulsar, state: State, used: int, moved: int
) -> None:
    pulsar.brokers[0].grows.clear()
    budget = MoveBudget(MoveLimits(per_hour=6))
    for _ in range(used):
        budget.begin(BOUNDARIES.bundles[0], monotonic())
        budget.end(BOUNDARIES.bundles[0], monotonic())
    await rounds(pulsar, state, 4, budget=budget)
    assert len(pulsar.unloads) == moved


@pytest.mark.parametrize("opens", [True, False])
async def test_a_bundle_of_a_topic_that_others_need_is_served_if_that_topic_loads(
    pulsar: FakePulsar, state: State, monkeypatch: pytest.MonkeyPatch, *, opens: bool
) -> None:
    brief = partial(BundleMover, look_s=0.2, served_s=0.1)
    monkeypatch.setattr("loadmanager.pulsar.orders.BundleMover", brief)
    topic, bounds = "persistent://bench/one/__change_events", "0x00000000_0xffffffff"
    first, *others = pulsar.brokers
    first.owned, first.topics = [f"bench/one/{bounds}", f"bench/other/{bounds}"], {topic: [1.0] * 4}
    first.grows = {topic: (0.0, 0.0, 0.0, 0.0)}
    for broker in others:
        broker.opens = opens
    pulsar.groups.update({"bench/one": "apart", "bench/other": "apart"})
    rules = Rules(move_partial=False, exclude=("bench/other",))
    told, _, _ = await rounds(pulsar, state, 1, rules=rules)
    (state_then,) = (one.state.value for one in told.tasks if one.state.ended)
    assert state_then == ("serving" if opens else "owned_not_served")


async def test_a_target_that_serves_nothing_is_left_out_until_it_is_cleared(
    pulsar: FakePulsar, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = partial(BundleMover, look_s=0.2, served_s=0.1)
    monkeypatch.setattr("loadmanager.pulsar.orders.BundleMover", brief)
    for broker in pulsar.brokers[1:]:
        broker.opens = False
    told, _, _ = await rounds(pulsar, state, 6, rules=Rules(move_partial=False, most_moves=1))
    states = [one.state.value for one in told.tasks if one.state.ended]
    assert "owned_not_served" in states
    left_out = told.seen[-1].missing
    assert set(left_out) <= {one.name for one in pulsar.brokers[1:]}
    assert all("attach --clear-target" in why for why in left_out.values())
    assert HeldReason.BROKER in told.seen[-1].holds
    again, _, _ = await rounds(pulsar, state, 1)
    assert set(again.seen[-1].missing) >= set(left_out)
    for name in left_out:
        for said in ("takes part again", "was not left out"):
            await asyncio.to_thread(clear, pulsar, state, name, said)
    again, _, _ = await rounds(pulsar, state, 1)
    assert not again.seen[-1].missing


async def test_a_broker_that_restarts_is_left_out(pulsar: FakePulsar, state: State) -> None:
    third, told = pulsar.brokers[2], Told()
    counter = 'process_cpu_seconds_total{cluster="research"}'
    cpu_seconds = iter([3.0, 50.0, 2.0, 60.0, 70.0])

    def restart() -> None:
        third.more_metrics = f"{counter} {next(cpu_seconds)}"

    third.more_metrics = f"{counter} 100.0"
    told.after_round = restart
    await rounds(pulsar, state, 4, told=told, settle_s=600.0, rules=Rules(most_moves=1))
    reasons = [next(iter(seen.holds), None) for seen in told.seen]
    assert reasons == [None, HeldReason.SETTLING, HeldReason.SETTLING, HeldReason.BROKER]
    assert "restarted 2 times within an hour" in told.seen[-1].missing[BrokerId(third.name)]
    assert f"; held: left out: {third.name} (it joined" in told.seen[-1].verdict
    (move,) = told.seen[-1].proposals
    assert third.name not in {move.source, move.target}
    assert pulsar.unloads[-1] == (move.bundle, move.target)


async def test_a_bundle_whose_unload_is_stuck_and_its_target_are_left_out(
    pulsar: FakePulsar, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmanager.pulsar.moves._WATCH_S", 0.02)
    brief = partial(BundleMover, look_s=0.2, stuck_s=0.1)
    monkeypatch.setattr("loadmanager.pulsar.orders.BundleMover", brief)
    pulsar.unload_s = 3600.0
    told, _, _ = await rounds(pulsar, state, 2, rules=Rules(move_partial=False, most_moves=1))
    first = next(one for one in told.tasks if one.state.ended)
    assert first.state.value == "stuck"
    assert list(told.seen[-1].missing) == [first.target]
    assert first.bundle in told.seen[-1].missing[first.target]
    assert first.bundle not in {one.bundle for one in told.seen[-1].proposals}


@pytest.mark.parametrize(("leaves", "moves"), [(False, 0), (True, 2)])
async def test_a_part_of_the_budget_is_kept_for_when_a_broker_is_lost(
    pulsar: FakePulsar, state: State, *, leaves: bool, moves: int
) -> None:
    budget = MoveBudget(MoveLimits(per_hour=8))
    budget.resume([Begun(1000.0, Namespace(""), 6)], monotonic())
    await StoredBudget(budget, state).store()
    told = Told()
    if leaves:
        told.after_round = lambda: pulsar.brokers.pop() if len(told.seen) == 1 else None
    await rounds(pulsar, state, 3, budget=MoveBudget(MoveLimits(per_hour=8)), told=told)
    assert len(pulsar.unloads) == moves
    kept = "6 of 8 moves an hour: 2 are kept for lost and draining brokers"
    assert told.seen[0].holds == {HeldReason.BUDGET: kept}


def clear(pulsar: FakePulsar, state: State, broker: str, said: str) -> None:
    folder = Path(state.where()).parent
    found = attach(pulsar, "--state-dir", str(folder), "--json", "--clear-target", broker)
    assert json.loads(found.stdout)["event"] == f"{broker} {said}"


async def test_time_clears_a_target_too(state: State) -> None:
    now_ms = [1_000_000]
    targets = HeldTargets(state, lambda: now_ms[0])
    targets.add(A, "it owned a bundle without serving its topics")
    await targets.refresh()
    now_ms[0] += round(1000 * NOT_SERVED_S) - 1
    following = HeldTargets(state, lambda: now_ms[0])
    await following.refresh()
    assert set(following.held) == {A}
    for content in ("[]", "{}", '{"targets": {"b:8080": ["soon", "why"]}}'):
        await state.keep(Part.TARGETS, content)
        with pytest.raises(StateUnusable, match="expected the targets"):
            await following.refresh()
    assert set(following.held) == {A}
    now_ms[0] += 1
    assert following.held == {}
    # Where the clock is set back by an hour or more, it takes part after an hour all the same.
    targets.add(A, "it owned a bundle without serving its topics")
    await state.keep(Part.TARGETS, '{"targets": {}}')
    await targets.refresh()
    now_ms[0] -= 100 * round(1000 * NOT_SERVED_S)
    await following.refresh()
    now_ms[0] += round(1000 * NOT_SERVED_S)
    await following.refresh()
    assert following.held == {}


def test_metrics_say_why_nothing_moves(pulsar: FakePulsar, tmp_path: Path) -> None:
    port, page = free_port(), free_port()
    options = ["--pulsar", pulsar.url, "--interval", "0.2", "--state-dir", str(tmp_path)]
    more = ["--balance", "--moves-per-hour", "1", "--metrics-port", str(port), "--page", str(page)]
    with attached(*options, *more) as process:
        process.until("; held: 1 moves an hour")
        until(port, budget=1, unreadable=0, paused=0)
        shown = (event(page)[1].get("overview", {}).get("held") for _ in range(100))
        assert "1 moves an hour" in shown
        for broker in pulsar.brokers:
            broker.refuses("/admin/v2/brokers/research", 503, "shutting down")
        process.until("nothing moves in this round", times=2)
        until(port, unreadable=1)
        process.end()
