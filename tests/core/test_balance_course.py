"""The course of the balance: what of it is kept and shown."""

from itertools import pairwise

import pytest

from loadmanager.core.balance_course import BalancePoint, last_hour
from loadmanager.core.bounds import HOUR_MS

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
