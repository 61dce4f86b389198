from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName
from loadmanager.core.hashing import FULL_RANGE_END
from loadmanager.core.ids import Namespace, range_of

NAMESPACE = Namespace("t/n")
bounds = st.sets(st.integers(1, FULL_RANGE_END - 1), max_size=20).map(
    lambda inner: (0, *sorted(inner), FULL_RANGE_END)
)


@given(bounds, st.integers(0, FULL_RANGE_END))
def test_every_position_lies_in_the_one_bundle_that_holds_it(
    cuts: tuple[int, ...], at: int
) -> None:
    lower, upper = range_of(Boundaries(NAMESPACE, cuts).at(at))
    assert lower <= at < upper or at == upper == FULL_RANGE_END


@given(bounds, bounds)
def test_a_bundle_is_in_boundaries_that_have_its_range(
    cuts: tuple[int, ...], others: tuple[int, ...]
) -> None:
    made = Boundaries(NAMESPACE, cuts)
    for bundle in Boundaries(NAMESPACE, others).bundles:
        assert (bundle in made) == (bundle in made.bundles)
    assert all(bundle in made for bundle in made.bundles)
    assert not any(bundle in made for bundle in Boundaries(Namespace("t/m"), cuts).bundles)


@given(st.integers(1, 5000))
def test_even_bundles_are_of_one_width_and_the_last_takes_the_rest(count: int) -> None:
    made = Boundaries.even(NAMESPACE, count)
    widths = [upper - lower for lower, upper in pairwise(made.bounds)]
    assert len(made.bundles) == count
    assert {*widths[:-1]} <= {2**32 // count}
    assert widths[-1] >= 2**32 // count - 1


def test_nine_bundles_are_cut_as_pulsar_cuts_them() -> None:
    assert Boundaries.even(NAMESPACE, 9).bundles[6] == "t/n/0xaaaaaaa8_0xc71c71c4"


def test_the_topic_of_the_article_lies_in_the_first_of_two_bundles() -> None:
    assert Boundaries.even(NAMESPACE, 2).at(0x0000000F) == "t/n/0x00000000_0x80000000"


@pytest.mark.parametrize("count", [0, -1, 2**32])
def test_a_count_that_cannot_be_is_refused(count: int) -> None:
    with pytest.raises(InvalidName, match="bundle count"):
        Boundaries.even(NAMESPACE, count)


@pytest.mark.parametrize(
    "cuts",
    [
        (),
        (0,),
        (0, 5),
        (1, FULL_RANGE_END),
        (0, 5, 5, FULL_RANGE_END),
        (0, 6, 5, FULL_RANGE_END),
    ],
)
def test_bounds_that_do_not_tile_the_circle_are_refused(cuts: tuple[int, ...]) -> None:
    with pytest.raises(InvalidName, match="growing bounds"):
        Boundaries(NAMESPACE, cuts)
