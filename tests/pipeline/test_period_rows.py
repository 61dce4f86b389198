"""Hours, days, averages and windows of moves, with arrays, against sums done one by one."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.averages import LONG_SAMPLES, SHORT_SAMPLES, Average
from loadmanager.core.bounds import DAY_MS, HOUR_MS
from loadmanager.core.rates import Rates
from loadmanager.pipeline.move_effects import fitting_window_s
from loadmanager.pipeline.replay.events import Averages
from loadmanager.pipeline.rollup.period_rows import DAY, RATES, Periods, periods_of

Row = dict[str, Any]
MINUTE_MS = 60_000


def minute(key: int, number: int, rate: float | None, *, seconds: float = 60.0) -> Row:
    rates = {f"{name}_mean": rate for name in RATES}
    highest = {f"{name}_max": None if rate is None else rate + 1.0 for name in RATES}
    times = {"key_1": key, "key_2": -key, "minute_ms": number * MINUTE_MS, "seconds": seconds}
    day = {DAY: hash((key, number // 1440))}
    return times | day | rates | highest


def made(minutes: list[Row], *, batch_rows: int = 10_000, with_max: bool = True) -> list[Row]:
    columns = list(minutes[0]) if with_max else ["seconds"]
    periods: Periods = periods_of(RATES, columns)
    wanted = ["key_1", "key_2", "minute_ms", DAY, *periods.read]
    table = pa.Table.from_pylist(minutes).select(wanted)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from table.to_batches(max_chunksize=batch_rows)

    rows = [row for batch in periods.computed(batches()) for row in batch.to_pylist()]
    names = [one.split()[0] for one in periods.schema.split(", ")]
    assert all(set(row) == set(names) for row in rows)
    return rows


def only(rows: list[Row], length_ms: int) -> list[Row]:
    return [row for row in rows if row["length_ms"] == length_ms]


def test_an_hour_has_the_mean_by_time_and_percentiles_that_occurred() -> None:
    rows = made([minute(1, number, float(number + 1)) for number in range(20)])
    (hour,) = only(rows, HOUR_MS)
    assert (hour["minutes"], hour["seconds"], hour["period_ms"]) == (20, 1200.0, 0)
    assert hour["msgs_in_per_s_mean"] == pytest.approx(10.5)
    told = [hour[f"msgs_in_per_s_{name}"] for name in ("p50", "p95", "p99", "max")]
    assert told == [10.0, 19.0, 20.0, 21.0]
    square = sum((2 * (number + 1) - 21.0) ** 2 for number in range(20)) / 20
    assert hour["msgs_per_s_std"] == pytest.approx(math.sqrt(square))


def test_a_minute_counts_for_its_seconds_in_means_and_once_in_percentiles() -> None:
    minutes = [minute(1, 0, 60.0, seconds=10.0), minute(1, 1, 120.0)]
    (hour,) = only(made(minutes, with_max=False), HOUR_MS)
    assert hour["msgs_in_per_s_mean"] == pytest.approx((600.0 + 7200.0) / 70.0)
    assert (hour["msgs_in_per_s_p50"], hour["msgs_out_per_s_max"]) == (60.0, 120.0)


def test_what_was_not_measured_counts_for_nothing() -> None:
    minutes = [minute(1, 0, None), minute(1, 1, 4.0), minute(1, 2, 2.0), minute(2, 0, None)]
    known, unknown = only(made(minutes), DAY_MS)
    assert (known["bytes_in_per_s_mean"], known["bytes_in_per_s_p50"]) == (3.0, 2.0)
    assert (known["bytes_in_per_s_max"], known["minutes"]) == (5.0, 3)
    nothing = [unknown[f"bytes_in_per_s_{name}"] for name in ("mean", "p50", "p99", "max")]
    assert [*nothing, unknown["bytes_per_s_std"]] == [None] * 5


def test_keys_and_periods_are_kept_apart() -> None:
    day = 24 * 60
    minutes = [minute(1, 59, 1.0), minute(1, 60, 2.0), minute(1, day, 3.0), minute(2, day, 4.0)]
    rows = made(minutes)
    found = [(row["key_1"], row["key_2"], row["period_ms"]) for row in only(rows, HOUR_MS)]
    assert found == [(1, -1, 0), (1, -1, HOUR_MS), (1, -1, DAY_MS), (2, -2, DAY_MS)]
    assert [row["minutes"] for row in only(rows, DAY_MS)] == [2, 1, 1]
    assert [row["msgs_in_per_s_mean"] for row in only(rows, DAY_MS)] == [1.5, 3.0, 4.0]


@pytest.mark.parametrize("batch_rows", [999, 60_000])
def test_no_day_is_cut_in_two_wherever_batches_end(batch_rows: int) -> None:
    # More than is computed at once, so that what is left over is carried on.
    minutes = [minute(key, number, float(number)) for key in range(40) for number in range(1440)]
    rows = made(minutes, batch_rows=batch_rows)
    assert [row["minutes"] for row in only(rows, DAY_MS)] == [1440] * 40
    assert [row["key_1"] for row in only(rows, DAY_MS)] == list(range(40))
    assert [row["minutes"] for row in only(rows, HOUR_MS)] == [60] * (40 * 24)
    assert {row["msgs_in_per_s_p50"] for row in only(rows, DAY_MS)} == {719.0}


def test_minutes_of_a_day_come_in_any_order_and_of_none_nothing_becomes() -> None:
    minutes = [minute(key, number, float(number)) for key in (1, 2) for number in range(90)]
    turned = made([*reversed(minutes[:90]), *reversed(minutes[90:])])
    assert turned == made(minutes)
    empty = pa.RecordBatch.from_pylist([minute(1, 0, 1.0)]).slice(0, 0)
    assert list(periods_of(RATES, ["seconds"]).computed([])) == []
    assert list(periods_of(RATES, ["seconds"]).computed([empty])) == []


@pytest.mark.parametrize("batch_rows", [999, 60_000])
def test_days_of_two_keys_that_have_one_number_are_kept_apart(batch_rows: int) -> None:
    alike = [
        minute(key, number, float(key)) | {DAY: number // 1440}
        for number in range(20 * 1440)
        for key in (1, 2, 3)
    ]
    days = only(made(alike, batch_rows=batch_rows), DAY_MS)
    assert [row["minutes"] for row in days] == [1440] * 60
    assert [row["msgs_in_per_s_max"] - 1.0 for row in days] == [row["key_1"] for row in days]


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
