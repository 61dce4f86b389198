"""Averages and windows of moves, against sums done one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.averages import LONG_SAMPLES, SHORT_SAMPLES, Average
from loadmanager.core.rates import Rates
from loadmanager.pipeline.load_windows import fitting_window_s
from loadmanager.pipeline.replay.events import Averages

RATE = st.floats(0.0, 1e9)


@given(rates=st.lists(st.lists(RATE, min_size=3, max_size=3), min_size=1, max_size=30))
def test_it_is_the_cores_own_average_to_the_bit(rates: list[list[float]]) -> None:
    found, listed = Averages.none(), np.ones(3, dtype=np.bool_)
    for every in rates:
        found = found.sampled(np.repeat(np.array(every)[:, None], 4, axis=1), np.zeros(3), listed)
    for row, bundle in zip(found.table(3), range(3), strict=True):
        for place, most in ((0, SHORT_SAMPLES), (1, LONG_SAMPLES)):
            average = Average(most, 0, Rates())
            for every in rates:
                average = average.add(Rates(*[every[bundle]] * 4))
            assert row[4 * place : 4 * place + 4].tolist() == list(average.rates.row())
            assert row[8 + place] == average.samples


def test_a_window_has_some_reports_and_is_neither_too_short_nor_too_long() -> None:
    for interval_s, window_s in ((2.0, 10.0), (20.0, 100.0), (900.0, 300.0)):
        assert fitting_window_s(interval_s, min(interval_s, 60.0)) == window_s
    cases = {(60.0, 5.0): 300.0, (0.5, 1.0): 10.0, (5.0, 60.0): 150.0, (20.0, None): 100.0}
    for (interval_s, measured_s), window_s in cases.items():
        assert fitting_window_s(interval_s, measured_s) == window_s
    assert fitting_window_s(None, None) == 300.0
