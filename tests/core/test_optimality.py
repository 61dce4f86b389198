"""The distance from the best, of a cluster as it is reported, and what policies leave of it."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_view import make_view

from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId, Namespace, bundle_id
from loadmanager.core.joint.learning import Learned
from loadmanager.core.optimality import (
    Assignable,
    Confined,
    Optimality,
    _shares,
    by_namespace,
    confinements,
    excess_over_level,
    optimality_of,
    traffic_sizes,
)
from loadmanager.core.policies import IsolationPolicy, Policies
from loadmanager.core.rates import BYTES_IN
from loadmanager.core.scores import CPU, ResourceWeights
from loadmanager.core.traffic_share import TrafficShare

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
    costs = known.unit_costs.copy()
    costs[CPU, BYTES_IN] = cores_per_byte
    brokers = known.brokers.of(view.brokers)
    speed = np.tile(np.array(speeds)[:, np.newaxis], brokers.speed.shape[1])
    return replace(known, unit_costs=costs, brokers=replace(brokers, speed=speed))


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
        isolation={
            "p": IsolationPolicy(namespaces=("t/p.*",), primary=("a",), secondary=("b",)),
        }
    )
    names = [_bundle("t/p1"), _bundle("t/other"), _bundle("t/p2")]
    brokers = (BrokerId("a:1"), BrokerId("b:1"), BrokerId("c:1"))
    found = confinements(policies, by_namespace(names), len(names), brokers)
    assert [(one.bundles.tolist(), one.brokers.tolist()) for one in found] == [
        ([True, False, True], [True, True, False]),
        ([False, True, False], [False, True, True]),
    ]
    assert confinements(Policies(), by_namespace(names), len(names), brokers) == ()
    # Bundles that came after the view was made are no part of it.
    first = confinements(policies, by_namespace(names), 1, brokers)
    assert [one.bundles.tolist() for one in first] == [[True], [False]]


def _bundle(namespace: str) -> BundleId:
    return bundle_id(Namespace(namespace), 0, 16)


def test_what_nobody_may_serve_raises_no_bound() -> None:
    one = Confined(np.array([True]), np.array([False, False]))
    none = Confined(np.array([False]), np.array([True, False]))
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
def test_no_assignment_within_policies_is_below_their_bound(
    sizes: list[float], kept: int, brokers: int
) -> None:
    """The first bundles are kept to the first broker, and the others away from it."""
    first = np.arange(len(sizes)) < kept
    there = np.arange(brokers) == 0
    confined = [Confined(first, there), Confined(~first, ~there)]
    best = min(
        max(
            sum(size for size, on in zip(sizes, owners, strict=True) if on == row)
            for row in range(brokers)
        )
        for owners in product(range(brokers), repeat=len(sizes))
        if all((on == 0) == early for on, early in zip(owners, first.tolist(), strict=True))
    )
    found = _assignable(np.array(sizes), brokers)
    assert found.bound() <= found.bound(confined) * (1 + 1e-12)
    assert found.bound(confined) <= best * (1 + 1e-9)


def test_what_a_background_puts_above_the_level_is_no_excess() -> None:
    demand, background = np.array([[0.9], [0.5], [0.2]]), np.array([[0.9], [0.0], [0.0]])
    assert excess_over_level(demand, background, 0.4) == pytest.approx(0.1 / 3 / 0.4)
    assert excess_over_level(demand, background, 0.0) == 0.0
