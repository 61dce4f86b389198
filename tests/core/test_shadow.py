"""Strategies beside the active one: what each would have had, while nothing moves."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_view import bundle, make_view

from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.optimality import Optimality, divided, optimality_of
from loadmanager.core.other_owners import with_owners
from loadmanager.core.placement import JointPlacement
from loadmanager.core.plan import Cause, Move
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.projection import after_move
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.shadow import ROUNDS_KEPT, Seen, Shadow, after_round
from loadmanager.core.shedding import SHEDDERS, JointShedder, ThresholdShedder
from loadmanager.core.traffic_share import TrafficShare

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


def stand(view: ClusterView) -> Optimality:
    found = optimality_of(view)
    assert found is not None
    return found


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
        told = Seen(view=seen, divided=parts, optimality=stand(seen), moves=active)
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


@pytest.mark.parametrize("shedder", sorted(set(SHEDDERS.values()), key=str))
def test_every_strategy_may_be_a_shadow(shedder: Any) -> None:
    planner = Planner(shedder=shedder(), settings=SETTINGS)
    if shedder is JointShedder:
        planner = replace(planner, placement=JointPlacement())
    shadow = lived(make_view(ALL_ON_ONE), planner, 12)
    assert shadow.gap <= 2.0 + 1e-9
    assert set(shadow.away.values()) <= {A, B, C}


def test_the_joint_strategy_evens_out_as_a_shadow() -> None:
    planner = Planner(shedder=JointShedder(), placement=JointPlacement(), settings=SETTINGS)
    assert lived(make_view(ALL_ON_ONE), planner, 12).rounds[-1].gap < 0.4


# --- other owners ------------------------------------------------------------------------


def moved_rows(view: ClusterView, bundle: BundleId, target: BrokerId) -> np.ndarray:
    owner = view.owned.listed_by.copy()
    owner[view.bundles.index[bundle]] = view.row(target)
    return owner


def test_a_world_with_one_move_is_that_of_the_planner_s_projection() -> None:
    averages = {
        "a:1": {"load_ema": 0.5, "bytes_ema": 500.0},
        "b:1": {"load_ema": 0.2, "bytes_ema": 50.0},
    }
    view = make_view({"a:1": (0.6, {1: 300.0, 2: 100.0}), "b:1": (0.2, {3: 50.0})}, averages)
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
