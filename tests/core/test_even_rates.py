from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.even_rates import Flags, RatePlan, plan_even_rates, rate_plan


def plan(
    rates: list[list[float]],
    owner: list[int],
    brokers: int,
    *,
    movable: Flags | None = None,
    gives: Flags | None = None,
    takes: Flags | None = None,
    kind: list[int] | None = None,
    most_moves: int = 100,
) -> RatePlan:
    everyone = np.ones(brokers, dtype=bool)
    return plan_even_rates(
        np.array(rates, dtype=float).reshape(len(owner), len(rates[0]) if rates else 2),
        np.array(owner, dtype=np.intp),
        brokers,
        movable=np.ones(len(owner), dtype=bool) if movable is None else movable,
        gives=everyone if gives is None else gives,
        kind=np.array([0] * len(owner) if kind is None else kind, dtype=np.intp),
        takes=np.atleast_2d(everyone if takes is None else takes),
        most_moves=most_moves,
    )


def test_all_on_one_of_three_is_spread_in_few_moves() -> None:
    found = plan([[1.0, 100.0]] * 12, [0] * 12, 3)
    assert found.max_over_mean == pytest.approx(3.0)
    assert found.least_max_over_mean == pytest.approx(1.0)
    assert found.planned_max_over_mean == pytest.approx(1.0)
    assert len(found.moves) == 8
    assert {move.source for move in found.moves} == {0}


def test_what_is_even_stays() -> None:
    found = plan([[1.0], [1.01]], [0, 1], 2)
    assert found.moves == ()
    assert found.planned_max_over_mean == found.max_over_mean == pytest.approx(1.005, abs=1e-3)


LARGE = np.array([True, False, False])


@pytest.mark.parametrize(
    ("rates", "owner", "brokers", "given", "moves"),
    [
        # 1.70 times the mean is the best possible, and it was 1.70 after a move, too.
        *(([[1.7], [1.3], [tiny]], [0, 1, 0], 3, {}, 0) for tiny in (0.0, 0.005, 0.015)),
        ([[1.69], [0.005], [0.3]], [0, 0, 1], 2, {}, 0),
        # The target would be nearly as full as its source.
        ([[0.98], [0.02], [0.0]], [0, 0, 1], 2, {"movable": LARGE}, 0),
        ([[0.80], [0.20], [0.0]], [0, 0, 1], 2, {"movable": LARGE}, 1),
        # Each broker is full of something, and none may give.
        ([[4.0, 0.0], [0.0, 4.0]], [0, 1], 2, {"gives": np.zeros(2, dtype=bool)}, 0),
        ([[1.0]] * 30, [0] * 30, 3, {"most_moves": 4}, 4),
        ([], [], 3, {}, 0),
    ],
)
def test_how_many_bundles_move(
    rates: list[list[float]], owner: list[int], brokers: int, given: dict[str, Any], moves: int
) -> None:
    assert len(plan(rates, owner, brokers, **given).moves) == moves


def test_many_small_bundles_are_evened_out_down_to_what_is_close_enough() -> None:
    found = plan([[0.001]] * 2000, [0] * 2000, 2, most_moves=2000)
    assert 1.0 < found.planned_max_over_mean <= 1.02


def test_a_broker_above_the_others_gives_in_a_large_cluster_as_in_a_small_one() -> None:
    for brokers in (3, 300):
        owner = [broker for broker in range(brokers) for _ in range(10)] + [0] * 4
        found = plan([[0.1]] * len(owner), owner, brokers)
        assert found.max_over_mean > 1.2
        assert found.planned_max_over_mean < 1.11


def test_one_bundle_that_is_too_large_for_any_broker_stays_and_the_bound_says_so() -> None:
    found = plan([[9.0], [1.0]], [0, 1], 2)
    assert found.moves == ()
    assert found.least_max_over_mean == pytest.approx(found.max_over_mean) == pytest.approx(1.8)


def test_opposite_rates_are_evened_together() -> None:
    # Messages lie on one broker and bytes on the other: each is full of something.
    rates = [[4.0, 0.0]] * 4 + [[0.0, 4.0]] * 4
    found = plan(rates, [0] * 4 + [1] * 4, 2)
    assert found.max_over_mean == pytest.approx(2.0)
    assert found.planned_max_over_mean == pytest.approx(1.0)


def test_no_traffic_moves_nothing() -> None:
    found = plan([[0.0, 0.0]], [0], 2)
    assert (found.moves, found.max_over_mean, found.least_max_over_mean) == ((), 1.0, 1.0)


def test_only_what_may_move_moves_between_brokers_that_may_give_and_take() -> None:
    rates, owner = [[1.0]] * 6, [0] * 6
    only_first = np.array([True] + [False] * 5)
    assert [m.bundle for m in plan(rates, owner, 3, movable=only_first).moves] == [0]
    assert plan(rates, owner, 3, gives=np.array([False, True, True])).moves == ()
    assert plan(rates, owner, 3, takes=np.array([True, False, False])).moves == ()
    to_last = plan(rates, owner, 3, takes=np.array([False, False, True]))
    assert {move.target for move in to_last.moves} == {2}


def test_each_kind_of_bundle_goes_only_where_it_may() -> None:
    takes = np.array([[False, True, False], [False, False, True]])
    found = plan([[1.0]] * 6, [0] * 6, 3, kind=[0, 1] * 3, takes=takes)
    assert {(move.bundle % 2, move.target) for move in found.moves} == {(0, 1), (1, 2)}


def test_a_fullest_broker_that_cannot_give_does_not_keep_the_next_from_giving() -> None:
    rates = [[9.0], [2.0], [2.0], [2.0]]
    found = plan(rates, [0, 1, 1, 1], 3, movable=np.array([False, True, True, True]))
    assert [(move.source, move.target) for move in found.moves] == [(1, 2)]


def test_rates_that_are_next_to_nothing_are_nothing() -> None:
    found = plan([[1e-300, 1e15], [1e-300, 5e-324]], [0, 0], 2)
    assert (found.moves, found.max_over_mean) == ((), 2.0)


@given(
    st.lists(
        st.tuples(st.floats(0, 1e15), st.floats(0, 1e15), st.integers(0, 3)),
        max_size=12,
    )
)
def test_a_plan_never_ends_fuller_than_it_began_nor_below_the_bound(
    bundles: list[tuple[float, float, int]],
) -> None:
    found = plan([[a, b] for a, b, _ in bundles], [owner for *_, owner in bundles], 4)
    assert found.planned_max_over_mean <= found.max_over_mean + 1e-9
    assert found.least_max_over_mean <= found.planned_max_over_mean + 1e-6
    assert len({move.bundle for move in found.moves}) == len(found.moves)


def test_moves_of_another_strategy_are_told_as_if_they_had_been_chosen_here() -> None:
    rates, owner = np.array([[1.0, 100.0]] * 12), np.zeros(12, dtype=np.intp)
    chosen = plan(rates.tolist(), owner.tolist(), 3)
    moves = [(one.bundle, one.target) for one in chosen.moves]
    assert rate_plan(rates, owner, 3, moves) == chosen
    # A swap leaves each broker what it had.
    swapped = rate_plan(rates[:2], np.array([0, 1], dtype=np.intp), 2, [(0, 1), (1, 0)])
    assert [one.max_over_mean for one in swapped.moves] == pytest.approx([2.0, 1.0])
    assert rate_plan(rates, owner, 3, []).planned_max_over_mean == pytest.approx(3.0)
