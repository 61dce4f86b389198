from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from loadmanager.core.lower_bound import lower_bound, water_levels

Floats = NDArray[np.float64]


class Case(NamedTuple):
    """The arguments of `lower_bound`, in their order."""

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
        for bundle, owner in enumerate(owners):
            demand[owner] += cost[class_of[owner], bundle]
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


@given(sizes=st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=1, max_size=6))
def test_with_two_like_brokers_the_best_is_at_most_a_third_above_the_bound(
    sizes: list[float],
) -> None:
    case = alike(sizes, brokers=2)
    assert best_of_all(case) <= lower_bound(*case) * 4 / 3 + 1e-9


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
