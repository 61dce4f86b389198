"""Errors of predictions of held-out blocks, by the costs and by the rule of traffic shares.

By that rule the usage of a broker is proportional to its traffic: CPU half to messages and half to
bytes, network to bytes of its direction, direct memory to bytes; the heap is constant. It is given
the means of each broker in the training blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from loadmanager.core.rates import BYTES_IN, BYTES_OUT, MSGS_IN, MSGS_OUT
from loadmanager.core.scores import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    DIRECT_MEMORY,
    MEMORY,
    FloatArray,
)
from loadmanager.pipeline.cost_model.normal_equations import State, row_fit
from loadmanager.pipeline.cost_model.row_statistics import RowStatistics, full_rows
from loadmanager.pipeline.cost_model.rows import (
    RESOURCE_COUNT,
    TRAINING,
    Rows,
    Source,
    Summing,
    by_block,
)

_COUNT, _ERROR, _RULE_ERROR, _WITHIN = range(4)
_WIDTH: Final = 4


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial:
    """Mean absolute errors (C, 5), relative to the measured usage; NaN without rows.

    ``within`` is the fraction of minutes within their 90 % interval. ``minutes`` and ``changes``
    count held-out rows; ``change_error`` is the error of the usage after changes of bundles. Full
    minutes are left out, because their demand is not known.
    """

    minutes: FloatArray
    error: FloatArray
    rule_error: FloatArray
    within: FloatArray
    changes: FloatArray
    change_error: FloatArray
    rule_change_error: FloatArray


def tried(source: Source, statistics: RowStatistics, state: State) -> Trial:
    """Return the errors of the training fit on held-out blocks, in one pass."""
    sums = source.sums(_trial_pass(statistics, state))
    empty = np.zeros((2, RESOURCE_COUNT, _WIDTH))
    found = np.stack([sums.get(-1 - number, empty) for number in range(statistics.classes)])
    with np.errstate(invalid="ignore"):
        means = found / found[..., [_COUNT]]
    minutes, changes = means[:, 0], means[:, 1]
    return Trial(
        minutes=found[:, 0, :, _COUNT],
        error=minutes[..., _ERROR],
        rule_error=minutes[..., _RULE_ERROR],
        within=minutes[..., _WITHIN],
        changes=found[:, 1, :, _COUNT],
        change_error=changes[..., _ERROR],
        rule_change_error=changes[..., _RULE_ERROR],
    )


def shares(rates: FloatArray, mean: FloatArray) -> FloatArray:
    """Return (n, 5): usage relative to the mean usage by the rule, for rates (n, 6)."""
    safe = np.where(mean > 0, mean, np.inf)
    part = rates / safe
    messages = rates[:, [MSGS_IN, MSGS_OUT]].sum(axis=1) / _or_infinity(
        mean[MSGS_IN : MSGS_OUT + 1]
    )
    volume = rates[:, [BYTES_IN, BYTES_OUT]].sum(axis=1) / _or_infinity(
        mean[BYTES_IN : BYTES_OUT + 1]
    )
    found = np.empty((len(rates), RESOURCE_COUNT))
    found[:, CPU] = (messages + volume) / 2.0
    found[:, DIRECT_MEMORY] = volume
    found[:, BANDWIDTH_IN], found[:, BANDWIDTH_OUT] = part[:, BYTES_IN], part[:, BYTES_OUT]
    found[:, MEMORY] = 1.0
    return found


def _or_infinity(mean: FloatArray) -> float:
    total = float(mean.sum())
    return total if total > 0 else np.inf


def _trial_pass(statistics: RowStatistics, state: State) -> Summing:
    def summing(batches: Iterator[Rows]) -> Iterator[tuple[int, FloatArray]]:
        for unit, rows in by_block(batches):
            if rows.held_out[0]:
                yield -1 - int(statistics.class_of[unit]), _of_block(rows, statistics, unit, state)

    return summing


def _of_block(rows: Rows, statistics: RowStatistics, unit: int, state: State) -> FloatArray:
    one = row_fit(rows, statistics, unit, state, TRAINING)
    number = int(statistics.class_of[unit])
    level = rows.level[:, np.newaxis]
    measured = np.where(level, rows.usage, rows.limit)  # after a move
    error = np.abs(rows.usage - one.fitted)
    share = shares(rows.rates, statistics.trained_rates[unit])
    share[:, MEMORY] = rows.level
    rule_error = np.abs(rows.usage - share * statistics.trained_usage[unit])
    within = error <= state.reach[number] * one.deviation
    with np.errstate(invalid="ignore", divide="ignore"):
        counted = ~np.isnan(rows.usage) & ~full_rows(rows) & (measured > 0)
        columns = (np.ones_like(error), error / measured, rule_error / measured, within)
    found = np.empty((2, RESOURCE_COUNT, _WIDTH))
    for kind, chosen in enumerate((level, ~level)):
        for column, values in enumerate(columns):
            found[kind, :, column] = np.where(counted & chosen, values, 0.0).sum(axis=0)
    return found
