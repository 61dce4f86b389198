"""The arithmetic of averages over arrays, beside the core's own for one bundle."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.averages import LONG_SAMPLES, SHORT_SAMPLES, Average
from loadmanager.core.rates import Rates
from loadmanager.pipeline.rollup.average_replay import Listings, State, replayed

RATE = st.floats(0.0, 1e9)


def unknown(bundles: int) -> State:
    none, rates = np.zeros(bundles, dtype=np.int64), np.zeros((bundles, 4))
    return State(short=rates, long=rates, short_samples=none, long_samples=none, topics=none)


def listings(*items: tuple[int, float, int, int]) -> Listings:
    """Return listings: (bundle, rate, first tick, last tick)."""
    rows, rates, from_tick, until_tick = (np.array(column) for column in zip(*items, strict=True))
    return Listings(
        rows=rows.astype(np.int64),
        rates=np.repeat(rates.astype(np.float64)[:, np.newaxis], 4, axis=1),
        topics=rows.astype(np.int64),
        from_tick=from_tick.astype(np.int64),
        until_tick=until_tick.astype(np.int64),
    )


def test_a_bundle_gets_a_sample_at_each_tick_at_which_a_report_lists_it() -> None:
    found = replayed(unknown(2), listings((0, 6.0, 1, 2), (1, 5.0, 3, 3)), 0, 4)
    assert found.long_samples.tolist() == [2, 1]
    assert found.long[:, 0].tolist() == [6.0, 5.0]


def test_of_two_reports_of_one_bundle_the_one_taken_up_later_counts() -> None:
    found = replayed(unknown(1), listings((0, 6.0, 1, 3), (0, 9.0, 2, 3)), 0, 3)
    assert found.long_samples.tolist() == [3]
    assert found.long[0, 0] == (6.0 + 9.0 + 9.0) / 3


def test_who_lists_it_still_goes_on_with_what_was_told_last() -> None:
    # The later report is over after tick 2: the former lists the bundle until it is replaced.
    found = replayed(unknown(1), listings((0, 6.0, 1, 3), (0, 9.0, 2, 2)), 0, 3)
    assert found.long[0, 0] == (6.0 + 9.0 + 9.0) / 3


def test_without_ticks_nothing_changes() -> None:
    state = replayed(unknown(1), listings((0, 6.0, 1, 1)), 0, 1)
    found = replayed(state, listings((0, 7.0, 2, 9)), 1, 1)
    assert found.long_samples.tolist() == [1]
    assert found.long[0, 0] == 6.0


@given(rates=st.lists(st.lists(RATE, min_size=3, max_size=3), min_size=1, max_size=30))
def test_it_is_the_cores_own_average_to_the_bit(rates: list[list[float]]) -> None:
    items = [
        (bundle, rate, tick, tick)
        for tick, every in enumerate(rates, start=1)
        for bundle, rate in enumerate(every)
    ]
    found = replayed(unknown(3), listings(*items), 0, len(rates))
    for bundle in range(3):
        for length, most in (("short", SHORT_SAMPLES), ("long", LONG_SAMPLES)):
            average = Average(most, 0, Rates())
            for every in rates:
                average = average.add(Rates(*[every[bundle]] * 4))
            assert getattr(found, length)[bundle].tolist() == list(average.rates.row())
            assert getattr(found, f"{length}_samples")[bundle] == average.samples
