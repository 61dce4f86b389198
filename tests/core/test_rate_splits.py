import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.hashing import FULL_RANGE_END
from loadmanager.core.max_over_mean import best_split_point, worth_cutting


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


@given(st.lists(st.tuples(st.integers(0, 999), st.floats(0, 1e6)), max_size=30))
def test_a_cut_leaves_load_on_both_sides(loads: list[tuple[int, float]]) -> None:
    cut = best_split_point(1000, loads)
    busy = [position for position, load in loads if load > 0]
    if cut is None:
        assert len(set(busy)) < 2
    else:
        assert any(position < cut for position in busy)
        assert any(position >= cut for position in busy)
