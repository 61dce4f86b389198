import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.hashing import FULL_RANGE_END
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.max_over_mean import RatePlan, best_split_point, rate_plan, worth_cutting
from loadmanager.core.plan import Cause, Move
from loadmanager.core.rates import Rates


def plan(
    rates: list[list[float]], owner: list[int], brokers: int, moves: list[tuple[int, int]]
) -> RatePlan:
    """Return the plan of moves, each of the bundle and the target with these numbers."""
    owned: dict[BrokerId, dict[BundleId, Rates]] = {BrokerId(f"{n}:1"): {} for n in range(brokers)}
    names = tuple(owned)
    for row, (msgs, size) in enumerate(rates):
        owned[names[owner[row]]][BundleId(str(row))] = Rates(msgs, 0.0, size, 0.0)
    return rate_plan(
        owned, [Move(BundleId(str(row)), None, names[to], Cause.IMBALANCE) for row, to in moves]
    )


def test_each_move_is_evaluated_after_those_before_it() -> None:
    found = plan([[1.0, 100.0]] * 12, [0] * 12, 3, [(row, 1 + row % 2) for row in range(8)])
    assert found.max_over_mean == pytest.approx(3.0)
    assert found.least_max_over_mean == pytest.approx(1.0)
    assert found.after == pytest.approx([(12 - moved) / 4 for moved in range(1, 9)])
    assert found.planned_max_over_mean == found.after[-1]
    assert plan([[1.0, 0.0]] * 12, [0] * 12, 3, []).planned_max_over_mean == pytest.approx(3.0)
    # A swap leaves each broker what it had.
    swapped = plan([[1.0, 0.0], [1.0, 0.0]], [0, 1], 2, [(0, 1), (1, 0)])
    assert swapped.after == pytest.approx([2.0, 1.0])


@pytest.mark.parametrize(
    ("rates", "owner", "largest", "least"),
    [
        ([], [], 1.0, 1.0),
        ([[0.0, 0.0]], [0], 1.0, 1.0),
        # The largest of the rates counts; one that nobody has does not.
        ([[1.0, 3.0], [1.0, 1.0]], [0, 1], 1.5, 1.5),
        ([[1.0, 0.0], [3.0, 0.0]], [0, 1], 1.5, 1.5),
        # No assignment splits a bundle, and the mean of less than a billionth is noise.
        ([[9.0, 0.0], [1.0, 0.0], [1.0, 0.0]], [0, 1, 1], 9 / 5.5, 9 / 5.5),
        ([[1e-10, 0.0], [0.0, 0.0]], [0, 1], 1.0, 1.0),
    ],
)
def test_the_fullest_broker_and_its_bound(
    rates: list[list[float]], owner: list[int], largest: float, least: float
) -> None:
    found = plan(rates, owner, 2, [])
    assert (found.max_over_mean, found.least_max_over_mean) == pytest.approx((largest, least))


@given(
    st.lists(
        st.tuples(st.floats(0, 1e15), st.floats(0, 1e15), st.integers(0, 3), st.integers(0, 3)),
        max_size=12,
    )
)
def test_no_plan_ends_below_the_bound(bundles: list[tuple[float, float, int, int]]) -> None:
    moves = [(row, target) for row, (*_, target) in enumerate(bundles)]
    found = plan([[a, b] for a, b, *_ in bundles], [owner for *_, owner, _ in bundles], 4, moves)
    assert found.least_max_over_mean <= found.planned_max_over_mean + 1e-6
    assert found.least_max_over_mean <= found.max_over_mean + 1e-6


def test_large_bundles_are_cut_if_needed() -> None:
    assert worth_cutting(0.25, 1.11)
    assert worth_cutting(3.0, 2.0)
    assert not worth_cutting(0.24, 2.0)
    assert not worth_cutting(3.0, 1.10)


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([(10, 1.0), (20, 1.0)], 15),
        ([(10, 1.0), (11, 1.0)], 11),
        ([(10, 3.0), (20, 1.0), (30, 1.0)], 15),
        ([(30, 3.0), (20, 1.0), (10, 1.0)], 25),
        ([(10, 1.0), (20, 1.0), (30, 1.0), (40, 1.0)], 25),
        ([(10, 1.0), (10, 1.0), (20, 5.0)], 15),
        ([(10, 1.0), (20, 0.0), (30, 1.0)], 20),
        ([(10, 1.0)], None),
        ([(10, 1.0), (10, 2.0)], None),
        ([(10, 1.0), (20, 0.0)], None),
        ([], None),
    ],
)
def test_the_cut_makes_alike_parts(loads: list[tuple[int, float]], expected: int | None) -> None:
    assert best_split_point(1000, loads) == expected


def test_the_last_position_of_all_cannot_be_cut_off() -> None:
    loads = [(FULL_RANGE_END - 1, 1.0), (FULL_RANGE_END, 1.0)]
    assert best_split_point(FULL_RANGE_END, loads) is None
