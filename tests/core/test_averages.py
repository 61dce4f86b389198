import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.averages import (
    DEFAULT_RATES,
    Average,
    BundleAverages,
    add_samples,
    scaled,
    summed,
)
from loadmanager.core.rates import Rates

amounts = st.floats(0, 1e9)
rates = st.builds(Rates, amounts, amounts, amounts, amounts)


@given(st.lists(rates, min_size=1, max_size=10))
def test_up_to_its_maximum_an_average_is_the_mean(samples: list[Rates]) -> None:
    average = Average(10, 0, DEFAULT_RATES)
    for sample in samples:
        average = average.add(sample)
    mean = sum(sample.msgs_in_per_s for sample in samples) / len(samples)
    assert average.samples == len(samples)
    assert math.isclose(average.rates.msgs_in_per_s, mean, rel_tol=1e-9, abs_tol=1e-6)


@given(st.lists(st.tuples(rates, rates, st.integers(0, 10)), min_size=1, max_size=8))
def test_many_bundles_at_once_average_like_each_by_itself(
    many: list[tuple[Rates, Rates, int]],
) -> None:
    averages, counts = add_samples(
        np.array([old.row() for old, _, _ in many]),
        np.array([count for _, _, count in many]),
        np.array([new.row() for _, new, _ in many]),
        10,
    )
    singly = [Average(10, count, old).add(new) for old, new, count in many]
    assert averages.tolist() == [list(one.rates.row()) for one in singly]
    assert counts.tolist() == [one.samples for one in singly]


def test_a_part_and_a_whole_are_supposed_to_have_their_share_until_they_are_measured() -> None:
    def averages(samples: int, factor: float, topics: int) -> BundleAverages:
        short, long = (Rates(*(factor * n * part for n in range(1, 5))) for part in (1.0, 2.0))
        return BundleAverages(Average(10, samples, short), Average(1000, samples, long), topics)

    assert scaled(averages(9, 4.0, 6), 0.25) == averages(1, 1.0, 2)
    assert scaled(averages(0, 4.0, 6), 0.5) == averages(0, 2.0, 3)
    assert summed([averages(9, 1.0, 2), averages(5, 3.0, 3)]) == averages(1, 4.0, 5)
    assert summed([averages(9, 1.0, 2), averages(0, 3.0, 3)]).short.samples == 0
