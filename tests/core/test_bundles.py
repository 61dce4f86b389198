from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName
from loadmanager.core.hashing import FULL_RANGE_END, HASH_FUNCTIONS, crc32, murmur3, position
from loadmanager.core.ids import Namespace, parse_topic, range_of

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


def test_crc32_is_that_of_pulsar() -> None:
    assert crc32("123456789") == 0xCBF43926


def test_murmur3_is_the_x86_one_with_seed_zero() -> None:
    assert murmur3("") == 0
    assert murmur3("hello") == 0x248BFA47


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_every_hash_lies_on_the_circle(text: str) -> None:
    assert all(0 <= hash_of(text) <= FULL_RANGE_END for hash_of in HASH_FUNCTIONS.values())


def test_the_domain_is_part_of_what_is_hashed() -> None:
    one, other = parse_topic("persistent://t/n/x"), parse_topic("non-persistent://t/n/x")
    assert position(one, "crc32") != position(other, "crc32")
    assert position(one, "crc32") == crc32("persistent://t/n/x")
