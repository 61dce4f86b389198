"""How far a cluster is from the best possible, and what other strategies would come to beside."""

from dataclasses import replace
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from small_view import bundle, make_view

from loadmanager.core.bounds import HOUR_MS
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId, Namespace, bundle_id
from loadmanager.core.joint.learning import Learned
from loadmanager.core.lower_bound import lower_bound, water_levels
from loadmanager.core.optimality import (
    Assignable,
    BalancePoint,
    Confined,
    Optimality,
    _shares,
    by_namespace,
    confinements,
    divided,
    excess_over_level,
    last_hour,
    optimality_of,
    traffic_sizes,
)
from loadmanager.core.placement import JointPlacement
from loadmanager.core.plan import Cause, Move
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.policies import IsolationPolicy, Policies
from loadmanager.core.projection import TrafficShare, after_move
from loadmanager.core.rates import BYTES_IN
from loadmanager.core.scores import CPU, ResourceWeights
from loadmanager.core.shadow import ROUNDS_KEPT, Seen, Shadow, after_round, with_owners
from loadmanager.core.shedding import JointShedder, ThresholdShedder

CPU_ALONE = ResourceWeights(bandwidth_in=0, bandwidth_out=0)
UNEVEN = {"a:1": (0.6, {1: 100.0, 2: 100.0}), "b:1": (0.0, {}), "c:1": (0.3, {3: 100.0})}
"""Three equal bundles of 30 percent each, of which two lie together."""
KEPT = Policies(isolation={"only": IsolationPolicy(namespaces=("t/.*",), primary=("a",))})


def optimality(view: ClusterView, *learned: Learned, **given: Any) -> Optimality:
    found = optimality_of(view, *learned, **given)
    assert found is not None
    return found


def test_a_cluster_is_as_far_from_the_best_as_its_fullest_broker() -> None:
    found = optimality(make_view(UNEVEN))
    assert (found.largest, found.bound) == pytest.approx((0.6, 0.3))
    assert found.gap == pytest.approx(1.0)
    # One of three brokers is one level above the level.
    assert found.excess == pytest.approx(1 / 3)


def test_policies_may_allow_none_of_the_gap_to_be_closed() -> None:
    found = optimality(make_view(UNEVEN, policies=KEPT))
    assert found.gap == pytest.approx(1.0)
    assert found.bound_within_policies == pytest.approx(0.9)
    assert found.gap_within_policies == 0.0


def test_a_draining_broker_may_serve_nothing() -> None:
    found = optimality(make_view(UNEVEN, {"c:1": {"draining": True}}))
    # Two of three equal bundles lie together on the other two brokers.
    assert (found.bound, found.bound_within_policies) == pytest.approx((0.3, 0.6))
    kept = optimality(make_view(UNEVEN, {"a:1": {"draining": True}}, policies=KEPT))
    # The policy's only broker drains: where its bundles may go nowhere, that proves nothing.
    assert kept.bound_within_policies == pytest.approx(0.6)


def test_moves_count_before_they_are_made() -> None:
    view = make_view(UNEVEN)
    bundle = view.bundles.names[1]
    gone = BundleId("t/gone/0x00000000_0xffffffff")
    found = optimality(view, moves={bundle: BrokerId("b:1"), gone: BrokerId("b:1")})
    assert (found.largest, found.bound, found.gap) == pytest.approx((0.3, 0.3, 0.0))


def test_resources_without_weight_are_left_out() -> None:
    network = {"usage": (0.0, 0.0, 0.0, 9e5, 9e5), "limit": (800.0, 0.0, 0.0, 1e6, 1e6)}
    view = make_view(UNEVEN, dict.fromkeys(UNEVEN, network))
    every, cpu = optimality(view), optimality(view, weights=CPU_ALONE)
    assert (every.largest, cpu.largest) == pytest.approx((0.9, 0.0))
    assert (
        optimality_of(view, weights=ResourceWeights(cpu=0, bandwidth_in=0, bandwidth_out=0)) is None
    )


def test_what_was_learned_counts_before_shares_of_the_traffic() -> None:
    view = make_view(UNEVEN)
    # Bundles that use nothing leave all to others on the host, which nobody can move.
    background = optimality(view, Learned.nothing(view))
    assert background.bound == pytest.approx(0.6)
    assert background.gap == background.excess == 0.0


def test_bundles_that_use_next_to_nothing_leave_all_to_the_background() -> None:
    view = make_view(UNEVEN)
    tiny = optimality(view, _learned(view, cores_per_byte=1e-310, speeds=(1.0,) * len(UNEVEN)))
    assert (tiny.bound, tiny.gap) == pytest.approx((0.6, 0.0))


def test_a_slow_broker_is_given_what_it_can_do() -> None:
    view = make_view({"a:1": (0.6, {1: 100.0, 2: 100.0}), "b:1": (0.3, {3: 100.0, 4: 100.0})})
    twice = optimality(view, _learned(view, cores_per_byte=1.2, speeds=(2.0, 1.0)))
    alike = optimality(view, _learned(view, cores_per_byte=1.8, speeds=(1.0, 1.0)))
    assert (twice.largest, alike.largest) == pytest.approx((0.6, 0.6))
    # Each bundle takes 0.30 of the slow broker or 0.15 of the other: that has three of them.
    assert twice.bound == pytest.approx(0.45)
    # b:1 uses 0.3, less than its bundles are predicted to; a:1 has a background of 0.15.
    assert alike.bound == pytest.approx(0.45)


def _learned(view: ClusterView, cores_per_byte: float, speeds: tuple[float, ...]) -> Learned:
    known = Learned.nothing(view)
    costs = known.costs.copy()
    costs[CPU, BYTES_IN] = cores_per_byte
    brokers = known.brokers.of(view.brokers)
    speed = np.tile(np.array(speeds)[:, np.newaxis], brokers.speed.shape[1])
    return replace(known, costs=costs, brokers=replace(brokers, speed=speed))


def test_bundles_without_a_sample_are_no_part_of_what_can_move() -> None:
    view = make_view(UNEVEN)
    unknown = replace(view, bundles=replace(view.bundles, known=np.zeros_like(view.bundles.known)))
    found = optimality(unknown)
    assert (found.largest, found.bound, found.gap) == pytest.approx((0.6, 0.6, 0.0))


def test_of_no_broker_and_of_none_that_says_what_it_has_nothing_can_be_said() -> None:
    assert optimality_of(make_view({})) is None
    silent = {"a:1": {"limit": (0.0,) * 5}}
    assert optimality_of(make_view(UNEVEN, silent)) is None


def test_an_idle_cluster_has_no_gap() -> None:
    found = optimality(make_view({"a:1": (0.0, {}), "b:1": (0.0, {})}))
    assert (found.gap, found.gap_within_policies, found.excess) == (0.0, 0.0, 0.0)


def test_shares_of_the_traffic_are_those_of_the_cost_model() -> None:
    usage = {"usage": (400.0, 70.0, 0.0, 5e4, 9e4), "limit": (800.0, 100.0, 0.0, 1e6, 1e6)}
    view = make_view({"a:1": (0.0, {1: 300.0, 2: 100.0}), "b:1": (0.0, {})}, {"a:1": usage})
    sizes, names = traffic_sizes(view), view.bundles.names
    for row in range(len(view.bundles.known)):
        expected: Any = TrafficShare().usage(view, names[row], BrokerId("a:1"))
        assert sizes[row] == pytest.approx(expected)


def test_a_share_of_next_to_no_traffic_is_at_most_one() -> None:
    parts, wholes = np.array([1e15, 0.0, 1.0]), np.array([5e-324, 5e-324, 0.0])
    assert list(_shares(parts, wholes)) == [1.0, 0.0, 0.0]


def test_each_policy_and_all_other_bundles_are_confined_to_brokers_of_their_own() -> None:
    policies = Policies(
        isolation={"p": IsolationPolicy(namespaces=("t/p.*",), primary=("a",), secondary=("b",))}
    )
    names = [_bundle("t/p1"), _bundle("t/other"), _bundle("t/p2")]
    brokers = (BrokerId("a:1"), BrokerId("b:1"), BrokerId("c:1"))
    found = confinements(policies, by_namespace(names), len(names), brokers)
    assert [(one.bundles.tolist(), one.brokers.tolist()) for one in found] == [
        ([1], [False, True, True]),
        ([0, 2], [True, True, False]),
    ]
    assert confinements(Policies(), by_namespace(names), len(names), brokers) == ()
    # Bundles that came after the view was made are no part of it.
    first = confinements(policies, by_namespace(names), 1, brokers)
    assert [one.bundles.tolist() for one in first] == [[], [0]]


def _bundle(namespace: str) -> BundleId:
    return bundle_id(Namespace(namespace), 0, 16)


def test_what_nobody_may_serve_raises_no_bound() -> None:
    one = Confined(np.array([0]), np.array([False, False]))
    none = Confined(np.array([], dtype=np.intp), np.array([True, False]))
    alone = _assignable(np.array([0.4]), brokers=2)
    assert alone.bound([one, none]) == alone.bound() == pytest.approx(0.4)


def test_a_resource_by_itself_has_the_bound_of_that_resource() -> None:
    cost = np.array([[[0.2, 0.8], [0.4, 0.1]]])
    both = Assignable(
        cost=cost,
        background=np.zeros((2, 2)),
        capacity=np.ones((2, 2)),
        class_of=np.zeros(2, dtype=np.intp),
        present=np.ones(2, dtype=np.bool_),
    )
    assert both.bound() == pytest.approx(0.8)
    assert both.of_resource(0).bound() == pytest.approx(0.4)
    assert both.levels().tolist() == pytest.approx([0.3, 0.45])


def _assignable(sizes: np.ndarray, brokers: int) -> Assignable:
    return Assignable(
        cost=sizes.reshape(1, -1, 1),
        background=np.zeros((brokers, 1)),
        capacity=np.ones((brokers, 1)),
        class_of=np.zeros(brokers, dtype=np.intp),
        present=np.ones(brokers, dtype=np.bool_),
    )


@given(
    sizes=st.lists(st.sampled_from([0.1, 0.3, 0.5, 1.0]), min_size=1, max_size=5),
    kept=st.integers(0, 5),
    brokers=st.integers(2, 3),
)
def test_no_assignment_is_below_its_bound(sizes: list[float], kept: int, brokers: int) -> None:
    """The first bundles are kept to the first broker, and the others away from it."""
    first, others = np.split(np.arange(len(sizes)), [kept])
    there = np.arange(brokers) == 0
    confined = [Confined(first, there), Confined(others, ~there)]
    best = min(
        max(
            sum(size for size, on in zip(sizes, owners, strict=True) if on == row)
            for row in range(brokers)
        )
        for owners in product(range(brokers), repeat=len(sizes))
        if all((on == 0) == (row < kept) for row, on in enumerate(owners))
    )
    found = _assignable(np.array(sizes), brokers)
    assert found.bound() <= found.bound(confined) * (1 + 1e-12)
    assert found.bound(confined) <= best * (1 + 1e-9)


def test_what_a_background_puts_above_the_level_is_no_excess() -> None:
    demand, background = np.array([[0.9], [0.5], [0.2]]), np.array([[0.9], [0.0], [0.0]])
    assert excess_over_level(demand, background, 0.4) == pytest.approx(0.1 / 3 / 0.4)
    assert excess_over_level(demand, background, 0.0) == 0.0


Floats = NDArray[np.float64]


class Case(NamedTuple):
    cost: Floats
    background: Floats
    capacity: Floats
    class_of: NDArray[np.intp]


def best_of_all(case: Case) -> float:
    """Return the smallest largest demand, by trying every assignment there is."""
    cost, background, capacity, class_of = case
    best = float("inf")
    for owners in product(range(len(class_of)), repeat=cost.shape[1]):
        demand = background.copy()
        for number, owner in enumerate(owners):
            demand[owner] += cost[class_of[owner], number]
        best = min(best, float((demand / capacity).max()))
    return best


def alike(sizes: list[float], brokers: int, capacity: float = 1.0) -> Case:
    return Case(
        np.array(sizes, dtype=float).reshape(1, -1, 1),
        np.zeros((brokers, 1)),
        np.full((brokers, 1), capacity),
        np.zeros(brokers, dtype=np.intp),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    classes, resources = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    brokers, bundles = draw(st.integers(1, 3)), draw(st.integers(0, 5))
    small = st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0, 1.5, 2.1, 7.0])

    def filled(*shape: int) -> Floats:
        count = int(np.prod(shape))
        return np.array(draw(st.lists(small, min_size=count, max_size=count))).reshape(shape)

    return Case(
        filled(classes, bundles, resources),
        filled(brokers, resources),
        filled(brokers, resources) + 0.5,
        np.array(draw(st.lists(st.integers(0, classes - 1), min_size=brokers, max_size=brokers))),
    )


@given(case=cases())
@example(case=alike([2.1] * 5, brokers=3, capacity=0.3))
def test_no_assignment_is_better_than_the_bound(case: Case) -> None:
    assert lower_bound(*case) <= best_of_all(case) * (1 + 1e-12)


LARGEST = np.array([[[0.6]]])
SIZES, ALIKE = np.array([[1.0], [2.0]]), np.array([0, 0])
CROSSED = np.array([[1.0, 4.0], [4.0, 1.0]])
SMALL = np.full((100, 1), 0.009)
TWICE = np.stack([SMALL, 2 * SMALL])

BOUNDS: dict[str, tuple[Case, float]] = {
    "fifty equal bundles on 25 brokers": (alike([2.1] * 50, 25, 8.0), 0.525),
    "one more than fits evenly: three lie together": (alike([2.1] * 51, 25, 8.0), 3 * 2.1 / 8),
    # The small broker's background alone: with the bundle the large one has (0.2 + 0.6) / 2.
    "background": (Case(LARGEST, np.array([[0.5], [0.2]]), SIZES, ALIKE), 0.5),
    "the broker that is best": (Case(LARGEST, np.array([[0.0], [0.2]]), SIZES, ALIKE), 0.4),
    # The first broker is small in one resource, the second in the other.
    "two resources": (Case(np.array([[[1.0, 1.0]]]), np.zeros((2, 2)), CROSSED, ALIKE), 1.0),
    # 20 cores of small bundles on 8, 8 and 16: 0.625 each.
    "brokers of different size": (
        alike([0.02] * 1000, 3)._replace(capacity=np.array([[8.0], [8.0], [16.0]])),
        0.625,
    ),
    # Everything costs twice as much on the second broker: together they do as 1.5 would.
    "a slower class": (Case(TWICE, np.zeros((2, 1)), np.ones((2, 1)), np.array([0, 1])), 0.6),
    "no bundles": (alike([], 2)._replace(background=np.array([[0.1], [0.4]])), 0.4),
    "bundles that cost nothing": (alike([0.0, 0.0, 0.0, 1.0], 2), 1.0),
    "bundles that fit more often than can be counted": (alike([*[1e-310] * 3, 1.0], 2), 1.0),
}


@pytest.mark.parametrize(("case", "bound"), BOUNDS.values(), ids=BOUNDS)
def test_the_bound_of(case: Case, bound: float) -> None:
    assert lower_bound(*case) == pytest.approx(bound)


def test_counting_knows_that_small_brokers_have_no_room_for_large_bundles() -> None:
    # Four bundles of 1 on brokers of 0.9, 0.9 and 3.2: four on the large one, or one on a
    # small one, are 1.25 and 1.11; volume alone would say 0.8.
    case = alike([1.0] * 4, brokers=3)._replace(capacity=np.array([[0.9], [0.9], [3.2]]))
    assert best_of_all(case) == pytest.approx(1 / 0.9)
    assert lower_bound(*case) == pytest.approx(1 / 0.9, rel=1e-6)


def test_only_those_that_are_present_count() -> None:
    case = alike([1.0] * 4, brokers=4)
    present = np.array([True, False, True, False])
    assert lower_bound(*case) == pytest.approx(1.0)
    assert lower_bound(*case, present) == pytest.approx(2.0)
    assert np.isnan(lower_bound(*case, np.zeros(4, dtype=bool)))


@given(cases())
def test_no_assignment_is_below_the_water_level_in_any_resource(case: Case) -> None:
    assert water_levels(*case).max() <= best_of_all(case) * (1 + 1e-9)


def test_water_fills_the_brokers_that_others_use_least() -> None:
    case = alike([0.3, 0.1], brokers=3)._replace(background=np.array([[0.9], [0.1], [0.0]]))
    assert water_levels(*case).tolist() == pytest.approx([0.25])
    without = (*case, np.array([True, False, True]))
    assert water_levels(*without).tolist() == pytest.approx([0.4])


def test_the_water_level_of_a_slower_class_is_higher() -> None:
    sizes = np.array([[1.0, 1.0], [2.0, 2.0]])[:, :, None]
    case = Case(sizes, np.zeros((3, 1)), np.ones((3, 1)), np.array([0, 0, 1]))
    assert water_levels(*case).tolist() == pytest.approx([0.8])


def test_there_is_no_water_level_without_a_broker() -> None:
    assert np.isnan(water_levels(*alike([1.0], brokers=2), np.zeros(2, dtype=bool))).all()


A, B, C = (BrokerId(f"{name}:1") for name in "abc")
ALL_ON_ONE = {"a:1": (0.9, dict.fromkeys(range(9), 100.0)), "b:1": (0.0, {}), "c:1": (0.0, {})}
WEIGHTS = ResourceWeights()
SETTINGS = PlannerSettings(settle_s=0.0, cool_down_s=0.0, margin=0.0)
THRESHOLD = Planner(shedder=ThresholdShedder(min_bytes_per_s=0.0), settings=SETTINGS)
IDLE = Planner(settings=replace(SETTINGS, shedding=False))


def at(view: ClusterView, now_s: float) -> ClusterView:
    """Return the view at a later moment, with reports that are as young as before."""
    seen_s = view.brokers.seen_s + (now_s - view.now_s)
    return replace(view, now_s=now_s, brokers=replace(view.brokers, seen_s=seen_s))


def lived(
    view: ClusterView, planner: Planner, rounds: int, shadow: Shadow | None = None, **given: Any
) -> Shadow:
    shadow = shadow or Shadow()
    for number in range(rounds):
        seen = at(view, 60.0 * (number + 1))
        parts = divided(seen, None, None)
        assert parts is not None
        rng = np.random.default_rng(1)
        active = given.get("active", ())
        told = Seen(view=seen, divided=parts, optimality=optimality(seen), moves=active)
        shadow = after_round(shadow, planner, told, rng)
    return shadow


def test_a_shadow_moves_in_its_own_world_alone() -> None:
    view = make_view(ALL_ON_ONE)
    shadow = lived(view, THRESHOLD, 30)
    assert shadow.rounds[0].gap == shadow.rounds[0].active_gap == pytest.approx(2.0)
    last = shadow.rounds[-1]
    assert (last.largest, last.gap, last.moves) == pytest.approx((0.3, 0.0, 0))
    assert last.active_gap == pytest.approx(2.0)
    assert 0 < shadow.gap < 2.0
    assert shadow.regret == pytest.approx(2.0 - shadow.gap)
    # Each bundle is a ninth of the traffic.
    assert shadow.moves == len(shadow.away) >= 5
    assert shadow.moved == pytest.approx(shadow.moves / 9)
    assert view.owned.counts.tolist() == [9, 0, 0]


def test_a_shadow_does_not_follow_the_active_strategy() -> None:
    before = make_view(ALL_ON_ONE)
    first = bundle(0)
    moves = [Move(first, A, B, Cause.IMBALANCE), Move(bundle(1), None, C, Cause.UNOWNED)]
    shadow = lived(before, IDLE, 1, active=moves)
    assert shadow.away == {first: A}
    after = make_view({"a:1": (0.8, dict.fromkeys(range(1, 9), 100.0)), "b:1": (0.1, {0: 100.0}),
                       "c:1": (0.0, {})})  # fmt: skip
    told = lived(after, IDLE, 1, shadow).rounds[-1]
    assert (told.largest, told.active_gap) == pytest.approx((0.9, 5 / 3))
    assert told.gap == pytest.approx(2.0)
    assert (told.moves, told.moved) == (0, 0.0)


def test_what_left_the_cluster_leaves_a_shadow() -> None:
    view = make_view({"a:1": (0.9, dict.fromkeys(range(9), 100.0)), "b:1": (0.0, {})})
    away = {bundle(0): B, bundle(1): C, bundle(99): B}
    assert lived(view, IDLE, 1, Shadow(away=away)).away == {bundle(0): B}


def test_only_so_many_rounds_are_kept_and_none_is_no_gap() -> None:
    shadow = lived(make_view(ALL_ON_ONE), IDLE, ROUNDS_KEPT + 5)
    assert len(shadow.rounds) == ROUNDS_KEPT
    assert (Shadow().gap, Shadow().regret, Shadow().moves, Shadow().moved) == (0.0, 0.0, 0, 0)


def test_bundles_that_leave_a_draining_broker_are_no_moves_for_load() -> None:
    drained = make_view(ALL_ON_ONE, {"a:1": {"draining": True}})
    shadow = lived(drained, IDLE, 2)
    assert len(shadow.away) == 9
    assert shadow.moves == 0


def test_the_joint_strategy_evens_out_as_a_shadow() -> None:
    planner = Planner(shedder=JointShedder(), placement=JointPlacement(), settings=SETTINGS)
    assert lived(make_view(ALL_ON_ONE), planner, 12).rounds[-1].gap < 0.4


def moved_rows(view: ClusterView, bundle: BundleId, target: BrokerId) -> np.ndarray:
    owner = view.owned.listed_by.copy()
    owner[view.bundles.index[bundle]] = view.row(target)
    return owner


def test_a_world_with_one_move_is_that_of_the_planner_s_projection() -> None:
    averages = {"load_ema": {A: 0.5, B: 0.2}, "bytes_ema": {A: 500.0, B: 50.0}}
    brokers = {"a:1": (0.6, {1: 300.0, 2: 100.0}), "b:1": (0.2, {3: 50.0})}
    view = make_view(brokers, columns=averages)
    parts = divided(view, None, None)
    assert parts is not None
    world = with_owners(view, parts, moved_rows(view, bundle(1), B), WEIGHTS)
    want = after_move(view, TrafficShare(), Move(bundle(1), A, B, Cause.IMBALANCE)).brokers
    assert world.brokers.usage == pytest.approx(want.usage)
    assert world.brokers.traffic == pytest.approx(want.traffic)
    assert world.brokers.long_msgs_per_s == pytest.approx([100.0, 350.0])
    assert world.brokers.load_ema == pytest.approx([0.05, 0.65])
    assert world.brokers.bytes_ema == pytest.approx([200.0, 350.0])
    assert world.brokers.reported is view.brokers
    assert [world.bundles_of(one) for one in (A, B)] == [(bundle(2),), (bundle(1), bundle(3))]
    assert [one.bundle for one in world.top_bundles[B]] == [bundle(3), bundle(1)]
    assert (world.moved, world.recently_moved) == ({}, frozenset())


def test_the_same_owners_are_the_same_world_with_nothing_under_way() -> None:
    view = make_view(ALL_ON_ONE, in_flight={next(iter(make_view(ALL_ON_ONE).bundles.names)): B})
    assert view.moved
    parts = divided(view, None, None)
    assert parts is not None
    world = with_owners(view, parts, view.owned.listed_by, WEIGHTS)
    assert not world.moved
    assert world.brokers is view.brokers


def test_what_nobody_lists_may_get_an_owner_and_tops_of_others_are_not_made_up() -> None:
    view = replace(make_view(ALL_ON_ONE), top_bundles={})
    parts = divided(view, None, None)
    assert parts is not None
    owner = view.owned.listed_by.copy()
    owner[0] = -1
    world = with_owners(view, parts, owner, WEIGHTS)
    assert world.owned.counts.tolist() == [8, 0, 0]
    assert bundle(0) not in world.bundles_of(A)
    assert world.top_bundles == {}


NOW_MS = 10 * HOUR_MS


def point(before_s: float) -> BalancePoint:
    return BalancePoint(at_ms=NOW_MS - round(1000 * before_s), gap=0.5, largest=0.6, bound=0.4)


def test_points_older_than_an_hour_and_of_a_clock_set_back_are_left_out() -> None:
    kept = (point(3600.0), point(1800.0), point(0.0))
    assert last_hour((point(3600.1), *kept, point(-1.0)), NOW_MS, 10) == kept
    assert last_hour((), NOW_MS, 10) == ()


@pytest.mark.parametrize("count", [10, 11, 25, 719])
def test_of_many_points_evenly_spaced_ones_are_kept_with_the_newest(count: int) -> None:
    points = [point(4.0 * before) for before in reversed(range(count))]
    kept = last_hour(points, NOW_MS, 10)
    assert 5 <= len(kept) <= 10
    assert kept[-1] == points[-1]
    assert len({b.at_ms - a.at_ms for a, b in pairwise(kept)}) == 1
