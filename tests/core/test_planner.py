import os
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_promises import PROMISES, Promise, clusters, shedders
from small_view import bundle, make_view

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices, Listing
from loadmanager.core.fields import Fields
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.load import BundleStats
from loadmanager.core.load_tracker import BrokerLoad, LoadTracker
from loadmanager.core.memory import ROUND_MEMORY, Memory, RoundMemory, shifted
from loadmanager.core.placement import Ranking
from loadmanager.core.plan import Cause, Move, Offer, Reason
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.planner_settings import Mode, PlannerSettings
from loadmanager.core.playback import Playback
from loadmanager.core.policies import Policies
from loadmanager.core.projection import TrafficShare, loads, settled
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.shedding import Shed, ThresholdShedder

WEIGHTS = ResourceWeights()
HOT = {"a:1": (0.9, dict.fromkeys(range(9), 100.0)), "b:1": (0.1, {20: 100.0})}
LATER_S = 1000.0


@dataclass(frozen=True)
class Offering:
    offers: tuple[Offer, ...] = ()
    memory: Memory = field(default_factory=Memory)

    def shed(self, view: ClusterView, memory: Memory) -> Shed:
        del view, memory
        return Shed(self.offers, (), self.memory)


def offering(*pairs: tuple[BundleId, str], target: str | None = None) -> Offering:
    to = None if target is None else BrokerId(target)
    return Offering(
        tuple(Offer(one, BrokerId(source), Cause.OVERLOADED, to) for one, source in pairs)
    )


def hot_offers(count: int, target: str | None = None) -> Offering:
    return offering(*((bundle(number), "a:1") for number in range(count)), target=target)


def decide(
    view: ClusterView,
    shedder: Any,
    memory: RoundMemory | None = None,
    *,
    unowned: tuple[BundleId, ...] = (),
    doubtful: bool = False,
    **settings: Any,
) -> Plan:
    planner = Planner(shedder=shedder, settings=PlannerSettings(**settings))
    rng = np.random.default_rng(7)
    return planner.round(
        view, memory or RoundMemory(), rng, unowned=unowned, session_doubtful=doubtful
    )


def reasons(plan: Plan) -> dict[str, Reason]:
    return {refusal.subject: refusal.reason for refusal in plan.refusals}


def both(**changed: Any) -> dict[str, dict[str, Any]]:
    return {name: changed for name in HOT}  # noqa: C420 - the values are never written to


@pytest.fixture
def hot() -> ClusterView:
    return make_view(HOT, now_s=LATER_S, changed=both(seen_s=LATER_S - 100))


def test_a_bundle_goes_from_the_full_to_the_empty_broker(hot: ClusterView) -> None:
    plan = decide(hot, offering((bundle(1), "a:1")))
    assert plan.moves == (Move(bundle(1), BrokerId("a:1"), BrokerId("b:1"), Cause.OVERLOADED),)
    assert plan.memory.moved_at_s == {bundle(1): LATER_S}
    assert plan.memory.shedder.shed_at_s == {"a:1": LATER_S, "b:1": LATER_S}


def test_each_move_is_weighed_on_the_view_the_last_one_left(hot: ClusterView) -> None:
    # Each bundle is worth 0.1. After four moves both brokers stand at 0.5, where the next
    # move would make a worse place of the other.
    plan = decide(hot, hot_offers(9))
    assert len(plan.moves) == 4
    assert Counter(reasons(plan).values()) == {Reason.NO_IMPROVEMENT: 5}
    # Message rates decide where limits are unknown.
    view = make_view(HOT, both(limit=(0.0,) * 5), now_s=100.0)
    assert len(decide(view, hot_offers(9)).moves) == 4


def test_parity_carries_out_what_safety_refuses(hot: ClusterView) -> None:
    offers = hot_offers(9, target="b:1")
    assert len(decide(hot, offers, mode=Mode.PARITY, moves_per_round=1).moves) == 9


def test_parity_asks_the_placement_and_drops_what_would_come_back(hot: ClusterView) -> None:
    gone = decide(hot, offering((bundle(1), "a:1"), target="gone:1"), mode=Mode.PARITY)
    assert [move.target for move in gone.moves] == ["b:1"]
    back = decide(hot, offering((bundle(20), "b:1")), mode=Mode.PARITY)
    assert reasons(back) == {bundle(20): Reason.SAME_BROKER}


def test_nobody_to_go_to_is_a_reason() -> None:
    shut = {"b:1": {"draining": True}}
    view = make_view(HOT, shut, now_s=100.0)
    for mode in Mode:
        plan = decide(view, offering((bundle(1), "a:1")), mode=mode, drain_moves_per_round=0)
        expected = Reason.NO_CANDIDATE if mode is Mode.SAFE else Reason.SAME_BROKER
        assert reasons(plan)[bundle(1)] is expected
    nobody = make_view(HOT, both(draining=True), now_s=100.0)
    plan = decide(nobody, offering((bundle(1), "a:1")), mode=Mode.PARITY, settle_s=0.0)
    assert reasons(plan)[bundle(1)] is Reason.NO_CANDIDATE
    assert "2 draining" in plan.refusals[0].detail


class Declining:
    def rank(
        self, view: ClusterView, candidates: Indices, bundle: BundleId, memory: Memory
    ) -> Ranking:
        del view, bundle
        return Ranking(candidates[:0], memory)


def test_a_placement_may_decline(hot: ClusterView) -> None:
    planner = Planner(shedder=offering((bundle(1), "a:1")), placement=Declining())
    plan = planner.round(hot, RoundMemory(), np.random.default_rng(1))
    assert reasons(plan) == {bundle(1): Reason.NO_CANDIDATE}


def test_a_planned_destination_is_kept_if_it_helps() -> None:
    view = make_view({**HOT, "c:1": (0.3, {30: 1.0}), "d:1": (0.88, {31: 1.0})}, now_s=100.0)
    for target, got in (("b:1", "b:1"), ("d:1", "c:1"), ("gone:1", "c:1")):
        plan = decide(view, offering((bundle(1), "a:1"), target=target))
        assert [move.target for move in plan.moves] == [got]


@pytest.mark.parametrize(
    ("settings", "moves", "reason"),
    [
        ({"moves_per_round": 2}, 2, Reason.ROUND_BUDGET),
        ({"bytes_per_s_per_round": 250.0}, 2, Reason.TRAFFIC_BUDGET),
        ({"bytes_per_s_per_round": 1.0}, 1, Reason.TRAFFIC_BUDGET),
        ({"in_flight_per_broker": 3}, 3, Reason.BROKER_BUDGET),
        ({"moves_per_hour": 3}, 3, Reason.HOUR_BUDGET),
        ({"excluded_namespaces": frozenset({Namespace("t/n")})}, 0, Reason.NAMESPACE_EXCLUDED),
    ],
)
def test_budgets_stop_the_rest(
    hot: ClusterView, settings: dict[str, Any], moves: int, reason: Reason
) -> None:
    offers = hot_offers(4)
    plan = decide(hot, offers, **settings)
    assert len(plan.moves) == moves
    assert {*reasons(plan).values()} == {reason}


def test_a_full_target_is_passed_over() -> None:
    three = {**HOT, "c:1": (0.2, {30: 100.0})}
    coming = {bundle(number): BrokerId("b:1") for number in (50, 51)}
    view = make_view(three, now_s=100.0, in_flight=coming)
    plan = decide(view, offering((bundle(1), "a:1")), in_flight_per_broker=2)
    assert [move.target for move in plan.moves] == ["c:1"]
    coming |= {bundle(number): BrokerId("c:1") for number in (52, 53)}
    view = make_view(three, now_s=100.0, in_flight=coming)
    plan = decide(view, offering((bundle(1), "a:1")), in_flight_per_broker=2)
    assert reasons(plan) == {bundle(1): Reason.NO_CANDIDATE}
    assert plan.refusals[0].detail == "no broker has room"


def test_what_is_under_way_counts_where_it_goes() -> None:
    coming = {bundle(number): BrokerId("b:1") for number in range(4)}
    view = make_view(HOT, now_s=100.0, in_flight=coming)
    projected = settled(view, TrafficShare())
    assert loads(projected, WEIGHTS).tolist() == pytest.approx([0.5, 0.5])
    plan = decide(view, offering((bundle(0), "a:1"), (bundle(5), "a:1")))
    assert reasons(plan) == {bundle(0): Reason.IN_FLIGHT, bundle(5): Reason.NO_IMPROVEMENT}
    new = make_view(HOT, in_flight={bundle(77): BrokerId("b:1")})
    assert settled(new, TrafficShare()).brokers.usage[1, 0] > new.brokers.usage[1, 0]


def test_a_broker_with_an_old_report_neither_sheds_nor_takes() -> None:
    three = {**HOT, "c:1": (0.1, {30: 100.0}), "d:1": (0.1, {31: 100.0})}
    fresh = {name: {"seen_s": LATER_S - 50} for name in three}
    for name, reason in (("a:1", Reason.REPORT_STALE), ("b:1", None)):
        view = make_view(three, {**fresh, name: {"seen_s": 0.0}}, now_s=LATER_S)
        plan = decide(view, offering((bundle(1), "a:1")))
        assert reasons(plan).get(bundle(1)) is reason
        assert "b:1" not in {move.target for move in plan.moves} or name != "b:1"


def gated(view: ClusterView, bundle: BundleId, **given: Any) -> Reason:
    lost = BundleId("t/lost/0x00000000_0xffffffff")
    plan = decide(view, offering((bundle, "a:1")), unowned=(lost,), **given)
    assert [move.bundle for move in plan.moves] == [lost]
    return reasons(plan)[""]


def test_doubt_stops_shedding_but_not_the_placing_of_lost_bundles(hot: ClusterView) -> None:
    one = bundle(1)
    assert gated(hot, one, shedding=False) is Reason.SHEDDING_OFF
    assert gated(make_view({"a:1": HOT["a:1"]}), one) is Reason.TOO_FEW_BROKERS
    assert gated(make_view(HOT, now_s=5.0), one) is Reason.MEMBERSHIP_CHANGING
    lost = replace(hot, departures_s=(LATER_S - 10, LATER_S - 20, 0.0))
    assert gated(lost, one) is Reason.BROKERS_LOST
    aged = {"b:1": {"seen_s": LATER_S - 500}, "a:1": {"seen_s": LATER_S - 40}}
    assert gated(make_view(HOT, aged, now_s=LATER_S), one) is Reason.REPORTS_STALE


def test_a_doubtful_session_decides_nothing(hot: ClusterView) -> None:
    plan = decide(hot, offering((bundle(1), "a:1")), unowned=(bundle(99),), doubtful=True)
    assert (plan.moves, reasons(plan)) == ((), {"": Reason.SESSION_DOUBTFUL})


def test_observing_moves_nothing_and_remembers_no_move(hot: ClusterView) -> None:
    plan = decide(hot, offering((bundle(1), "a:1")), observe=True)
    assert (plan.moves, len(plan.observed), plan.memory.moved_at_s) == ((), 1, {})


def test_a_bundle_that_moved_rests(hot: ClusterView) -> None:
    memory = RoundMemory(moved_at_s={bundle(n): LATER_S - 60 for n in range(9)})
    shedder = ThresholdShedder(min_bytes_per_s=0.0)
    assert decide(hot, shedder).moves
    rested = decide(hot, shedder, memory)
    assert (rested.moves, reasons(rested)["a:1"]) == ((), Reason.NO_BUNDLE_FITS)
    assert decide(hot, shedder, memory, cool_down_s=30.0).moves


def test_a_bundle_rests_no_longer_once_brokers_came_or_went(hot: ClusterView) -> None:
    lives = dict(zip(hot.brokers.names, hot.brokers.started_at_ms, strict=True))
    moved_at_s = {bundle(n): LATER_S - 60 for n in range(9)}
    shedder = ThresholdShedder(min_bytes_per_s=0.0)
    first, *others = lives
    none: dict[BrokerId, int] = {}
    for before in (none, lives):
        memory = RoundMemory(moved_at_s=moved_at_s, started_at_ms=before)
        assert decide(hot, shedder, memory).moves == ()
    other = BrokerId("z:1")
    for before in ({one: lives[one] for one in others}, {**lives, first: 1}, {**lives, other: 1}):
        memory = RoundMemory(moved_at_s=moved_at_s, started_at_ms=before)
        plan = decide(hot, shedder, memory)
        assert plan.moves
        # What moves now rests again.
        after = replace(plan.memory, shedder=Memory())
        again = {move.bundle for move in decide(hot, shedder, after).moves}
        assert again.isdisjoint(move.bundle for move in plan.moves)


def test_a_bundle_that_has_to_stay_is_shed_by_no_strategy(hot: ClusterView) -> None:
    shedder = ThresholdShedder(min_bytes_per_s=0.0)
    (first, *_) = decide(hot, shedder).moves
    stays = replace(hot, policies=Policies(staying=frozenset({first.bundle})))
    moved = {move.bundle for move in decide(stays, shedder).moves}
    assert moved
    assert first.bundle not in moved


def test_a_move_is_remembered_once_its_order_stands(hot: ClusterView) -> None:
    former = RoundMemory(moved_at_s={bundle(1): LATER_S - 900, bundle(8): LATER_S - 9})
    plan = decide(
        hot, offering((bundle(1), "a:1"), (bundle(2), "a:1")), former, unowned=(bundle(99),)
    )
    assert [(move.bundle, move.source) for move in plan.moves] == [
        (bundle(99), None),
        (bundle(1), "a:1"),
        (bundle(2), "a:1"),
    ]
    before = plan.memory_before_orders(former)
    assert (before.moved_at_s, before.shedder) == (former.moved_at_s, former.shedder)
    assert before.started_at_ms == plan.memory.started_at_ms
    ordered = {bundle(99), bundle(2)}
    after = plan.memory_after_orders(before, ordered)
    assert after.moved_at_s == {**former.moved_at_s, bundle(2): LATER_S}
    assert after.shedder == plan.memory.shedder != former.shedder
    # What is placed rests from no move, and what was not ordered counts for nothing.
    assert plan.memory_after_orders(before, {bundle(99)}) == before
    assert plan.memory_after_orders(before, ()) == before


def test_a_round_without_moves_is_remembered_as_it_is(hot: ClusterView) -> None:
    plan = decide(hot, offering())
    assert plan.memory_before_orders(RoundMemory()) == plan.memory


def test_unowned_bundles_are_spread_and_placed_before_all_else() -> None:
    view = make_view({f"b{n}:1": (0.2, {n: 100.0}) for n in range(4)}, now_s=100.0)
    lost = tuple(bundle(number) for number in range(50, 62))
    plan = decide(view, Offering(), unowned=lost, placements_per_round=8)
    assert Counter(move.target for move in plan.moves) == {f"b{n}:1": 2 for n in range(4)}
    assert {move.source for move in plan.moves} == {None}
    assert list(reasons(plan).values()).count(Reason.ROUND_BUDGET) == 4
    assert plan.memory.moved_at_s == {}


def test_a_draining_broker_is_emptied_at_its_pace_but_for_its_own_bundle() -> None:
    own = BundleId("pulsar/a:1/0x00000000_0xffffffff")
    view = make_view(
        {"a:1": (0.1, {1: 1.0, 2: 1.0, 3: 1.0}), "b:1": (0.9, {4: 9.0})},
        {"a:1": {"draining": True}},
        in_flight={bundle(1): BrokerId("b:1")},
    )
    plan = decide(view, Offering(), drain_moves_per_round=1)
    assert [(move.bundle, move.cause) for move in plan.moves] == [(bundle(2), Cause.DRAINING)]
    assert reasons(plan)[bundle(3)] is Reason.ROUND_BUDGET
    # Between the rounds it is emptied by the drain.
    planner, rng = Planner(shedder=Offering()), np.random.default_rng(1)
    assert planner.round(view, RoundMemory(), rng, draining=False).moves == ()
    alone = make_view({"a:1": (0.1, {1: 1.0})}, {"a:1": {"draining": True}})
    assert reasons(decide(alone, Offering()))[bundle(1)] is Reason.NO_CANDIDATE
    tracker = LoadTracker()
    tracker.put(
        BrokerLoad(broker=BrokerId("a:1"), draining=True, listing=Listing.of({own: BundleStats()}))
    )
    tracker.put(BrokerLoad(broker=BrokerId("b:1")))
    assert decide(tracker.view(0.0), Offering()).moves == ()


def test_a_bundle_does_not_go_to_the_broker_it_leaves_however_idle() -> None:
    a, b = BrokerId("a:1"), BrokerId("b:1")
    brokers = {"a:1": (0.1, {1: 100.0}), "b:1": (0.9, dict.fromkeys(range(20, 29), 100.0))}
    view, rng = make_view(brokers, now_s=100.0), np.random.default_rng(1)
    leaving: dict[str, Any] = {"leaving": {bundle(1): a}, "cause": Cause.REQUESTED}
    assert Planner().place(view, [bundle(1)], RoundMemory(), rng).view.moved[bundle(1)] == a
    placed = Planner().place(view, [bundle(1)], RoundMemory(), rng, **leaving)
    assert placed.moves == [Move(bundle(1), a, b, Cause.REQUESTED)]
    assert placed.view.brokers.traffic[view.row(a)].sum() < view.brokers.traffic[view.row(a)].sum()
    nobody = make_view(brokers, {"b:1": {"draining": True}}, now_s=100.0)
    placed = Planner().place(nobody, [bundle(1)], RoundMemory(), rng, **leaving)
    assert placed.moves == []
    (refusal,) = placed.refusals
    assert (refusal.reason, refusal.detail) == (Reason.NO_CANDIDATE, "1 draining")


def test_a_playback_places_each_bundle_after_those_before() -> None:
    view = make_view({f"b{n}:1": (0.2, {n: 100.0}) for n in range(3)}, now_s=100.0)
    playback = Playback(Planner(), np.random.default_rng(1))
    moves, refused = playback.place(view, map(bundle, (*range(50, 56), 50)))
    # One that is under way keeps its target.
    assert moves.pop() == moves[0]
    assert Counter(move.target for move in moves) == {f"b{n}:1": 2 for n in range(3)}
    assert refused == {}
    memory = playback.memory
    assert (playback.place(view, ()), playback.memory is memory) == (([], {}), True)
    assert playback.round(view).memory is playback.memory
    leaving = {bundle(0): BrokerId("b0:1")}
    moves, refused = playback.place(make_view({"b0:1": (0.2, {0: 9.0})}), leaving, leaving)
    assert moves == []
    assert refused[bundle(0)][0].reason is Reason.NO_CANDIDATE


def test_a_restarted_broker_is_judged_by_its_new_life() -> None:
    born = both(started_at_ms=1)
    shedder = ThresholdShedder()
    memory = decide(make_view(HOT, born, now_s=100.0), shedder).memory
    idle = {**HOT, "a:1": (0.1, {})}
    again = {**born, "a:1": {"started_at_ms": 2}}
    memory = decide(make_view(idle, again, now_s=150.0), shedder, memory).memory
    assert memory.shedder.usage[BrokerId("a:1")] == pytest.approx(0.1)
    gone = decide(make_view({"b:1": HOT["b:1"]}, now_s=300.0), shedder, memory).memory
    assert "a:1" not in gone.shedder.usage
    assert gone.started_at_ms.keys() == {"b:1"}


def test_moves_that_a_clock_set_back_shows_in_the_future_are_forgotten(hot: ClusterView) -> None:
    memory = RoundMemory(moved_at_s={bundle(1): LATER_S + 5000, bundle(2): LATER_S - 9000})
    assert memory.following(hot, 60.0).moved_at_s == {}


def test_the_memory_of_a_round_survives_as_json(hot: ClusterView) -> None:
    memory = decide(hot, ThresholdShedder(min_bytes_per_s=0.0)).memory
    assert memory.moved_at_s
    assert ROUND_MEMORY.read(Fields("/m", ROUND_MEMORY.to_json(memory))) == memory


def test_a_memory_on_another_clock_has_all_its_times_moved_and_nothing_else() -> None:
    bundle, broker = BundleId("t/n/0x00000000_0xffffffff"), BrokerId("b1:8080")
    shedder = Memory(usage={broker: 0.5}, shed_at_s={broker: 7.0})
    memory = RoundMemory(shedder=shedder, moved_at_s={bundle: 5.0}, started_at_ms={broker: 1})
    there = shifted(memory, 100.0)
    assert there.moved_at_s == {bundle: 105.0}
    assert there.shedder.shed_at_s == {broker: 107.0}
    assert shifted(there, -100.0) == memory


MANY = int(os.environ.get("HYPOTHESIS_EXAMPLES", "2000"))
"""Examples of a thorough look at one promise; otherwise those of all core tests."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "examples", [settings().max_examples, pytest.param(MANY, marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_the_planner(promise: Promise, examples: int) -> None:
    settings(max_examples=examples)(given(clusters, shedders, st.data())(promise))()
