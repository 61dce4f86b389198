"""The whole estimation, from rows to findings for every class and resource.

A 90 % interval of a term consists of the values that are compatible with the rows when all other
terms take their best non-negative values (a profile interval). Two terms that cannot be separated
get intervals from 0 to the cost of both together.

Held-out blocks are predicted by the costs and by the rule of traffic shares: usage is proportional
to traffic, CPU half to messages and half to bytes, network to bytes of its direction, direct memory
to bytes; the heap is constant. The rule is given the means of each broker in the training blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from loadmanager.core.rates import BYTES_IN, BYTES_OUT, MSGS_IN, MSGS_OUT
from loadmanager.core.scores import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    DIRECT_MEMORY,
    MEMORY,
    RESOURCES,
    FloatArray,
)
from loadmanager.pipeline.confidence import student_95
from loadmanager.pipeline.cost_model.combining import (
    Estimate,
    Estimates,
    background_variances,
    combined,
    settled,
    zero_traffic,
)
from loadmanager.pipeline.cost_model.normal_equations import State, row_fit
from loadmanager.pipeline.cost_model.regression import NonNegative, fit
from loadmanager.pipeline.cost_model.row_statistics import RowStatistics, full_rows, row_statistics
from loadmanager.pipeline.cost_model.rows import (
    ALL,
    FIRST,
    LAST,
    RATE_COUNT,
    RATES,
    RESOURCE_COUNT,
    TRAINING,
    Rows,
    Source,
    Summing,
    by_block,
)
from loadmanager.pipeline.cost_model.uncertainty import Closing, Pulls, closing, pulls

LEAST_MINUTES: Final = 240
LEAST_BLOCKS: Final = 20
LEAST_VARIATION: Final = 0.01
_STEPS: Final = 40
_RIDGE: Final = 1e-8
_SURE: Final = 3.5


_COUNT, _ERROR, _RULE_ERROR, _WITHIN = range(4)
_WIDTH: Final = 4
MOST_CONDITION: Final = 30.0
"""Condition numbers above this indicate collinearity (Belsley, Kuh and Welsch 1980)."""

_SHARED: Final = 0.5
_VAGUE: Final = 0.5
_NEGLIGIBLE: Final = 0.01


class Verdict(StrEnum):
    """How well a term is known."""

    KNOWN = "known"
    VAGUE = "vague"
    ENTANGLED = "entangled"
    UNVARIED = "unvaried"


def condition(gram: FloatArray) -> float:
    """Return the condition number of normal equations with scaled terms; 1 is the best.

    Terms that never vary are left out; perfect collinearity gives infinity.
    """
    values, _, _ = _scaled(gram)
    if not len(values):
        return float("inf")
    least, most = float(values.min()), float(values.max())
    return float(np.sqrt(most / least)) if least > most * 1e-15 else float("inf")


def entangled(gram: FloatArray) -> list[tuple[str, ...]]:
    """Return for each term those that it cannot be separated from.

    Terms are entangled if a direction with a condition index above 30 has at least half of the
    variance of two or more of them (Belsley's variance decomposition).
    """
    values, vectors, varied = _scaled(gram)
    partners: list[set[int]] = [set() for _ in RATES]
    if len(values):
        most = float(values.max())
        safe = np.maximum(values, most * 1e-15)
        parts = vectors**2 / safe
        shares = parts / parts.sum(axis=1, keepdims=True)
        poor = np.flatnonzero(np.sqrt(most / safe) > MOST_CONDITION)
        for direction in poor:
            together = set(np.flatnonzero(varied)[shares[:, direction] > _SHARED].tolist())
            for term in together:
                partners[term] |= together - {term}
    return [tuple(RATES[other] for other in sorted(others)) for others in partners]


def verdict(
    *, varied: bool, partners: tuple[str, ...], low: float, value: float, high: float, usage: float
) -> Verdict:
    """Return how well a term is known; all amounts are at typical rates.

    A term is known if its interval extends at most half of its value to either side, or by a
    negligible part of the usage.
    """
    if not varied:
        return Verdict.UNVARIED
    known = max(high - value, value - low) <= max(_VAGUE * value, _NEGLIGIBLE * usage)
    if known:
        return Verdict.KNOWN
    return Verdict.ENTANGLED if partners else Verdict.VAGUE


def _scaled(
    gram: FloatArray,
) -> tuple[FloatArray, FloatArray, "np.ndarray[tuple[int], np.dtype[np.bool_]]"]:
    size = np.sqrt(np.maximum(np.diag(gram), 0.0))
    varied = size > 0
    inner = gram[np.ix_(varied, varied)] / np.outer(size[varied], size[varied])
    values, vectors = np.linalg.eigh(inner)
    return np.maximum(values, 0.0), vectors, varied


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


"""Standard deviations: one false alarm in two thousand unchanged terms."""

_WORTH_TELLING: Final = 0.1
_MOST_TIMES: Final = 10.0


@dataclass(frozen=True, slots=True)
class Drift:
    """The relative change of a cost; ``sure`` if it is significant.

    10 is the largest value: the relative growth of a cost of 0 is not defined.
    """

    fraction: float
    sure: bool


def drift_of(term: int, first: Estimate, last: Estimate) -> Drift | None:
    """Return the change of a term; None if one half does not identify it."""
    direction = np.zeros(len(first.free))
    direction[term] = 1.0
    return _along(direction, first, last)


def drift_of_all(first: Estimate, last: Estimate) -> Drift | None:
    """Return the change of the cost of typical traffic, which is known better than its terms."""
    varied = (np.diag(first.gram) > 0) & (np.diag(last.gram) > 0)
    return _along(varied.astype(np.float64), first, last) if varied.any() else None


def _along(direction: FloatArray, first: Estimate, last: Estimate) -> Drift | None:
    if not (first.knows(direction) and last.knows(direction)):
        return None
    before, after = float(direction @ first.costs), float(direction @ last.costs)
    change = float(direction @ (last.free - first.free))
    deviation = float(np.sqrt(direction @ (first.covariance + last.covariance) @ direction))
    size = max(before, after)
    fraction = (
        (after - before) / before if before > size / _MOST_TIMES else np.sign(after) * _MOST_TIMES
    )
    changed = deviation > 0 and abs(change) > _SURE * deviation
    return Drift(float(fraction), changed and abs(after - before) > _WORTH_TELLING * size)


"""Relative to the precision; avoids a division by 0 in undetermined directions."""


def interval(
    term: int, free: FloatArray, precision: FloatArray, most: float, freedom: int
) -> tuple[float, float]:
    """Return the 90 % interval of one term.

    ``free`` are the unconstrained estimates, and ``precision`` is the inverse of their covariance.
    ``most`` is the upper bound of the term.
    """
    if precision[term, term] <= 0.0:
        return 0.0, most
    distance = _Distance(term, free, precision)
    best = distance.best()
    allowed = distance(best) + student_95(freedom) ** 2
    low = 0.0 if distance(0.0) <= allowed else _edge(distance, best, 0.0, allowed)
    high = most if distance(most) <= allowed else _edge(distance, min(best, most), most, allowed)
    return low, max(low, high)


class _Distance:
    """The distance of the rows from a value of a term, minimised over the other terms."""

    def __init__(self, term: int, free: FloatArray, precision: FloatArray) -> None:
        size = np.sqrt(np.maximum(np.diag(precision), 0.0))
        self._scale = np.where(size > 0, size, 1.0)
        ridge = np.diag(np.where(size > 0, _RIDGE, 1.0))
        self._precision = precision / np.outer(self._scale, self._scale) + ridge
        self._free = free * self._scale
        self._term = term
        free = np.arange(RATE_COUNT) != term
        others = self._precision[free]
        self._inner = NonNegative(others[:, free])
        self._cross = others[:, term]
        self._right = others @ self._free
        self._constant = float(self._free @ self._precision @ self._free)

    def best(self) -> float:
        """Return the value of the term with the least distance."""
        target = self._precision @ self._free
        found, _ = NonNegative(self._precision).least(target)
        return float(found[self._term] / self._scale[self._term])

    def __call__(self, value: float) -> float:
        """Return the squared distance, in standard deviations."""
        scaled = value * self._scale[self._term]
        target = self._right - self._cross * scaled
        _, depth = self._inner.least(target)
        own = self._precision[self._term]
        fixed = float(own[self._term]) * scaled * scaled - 2.0 * scaled * float(own @ self._free)
        return float(2.0 * depth + fixed + self._constant)


def _edge(distance: _Distance, inside: float, outside: float, allowed: float) -> float:
    """Return where the distance reaches ``allowed``, by bisection."""
    for _ in range(_STEPS):
        middle = (inside + outside) / 2.0
        inside, outside = (middle, outside) if distance(middle) <= allowed else (inside, middle)
    return (inside + outside) / 2.0


@dataclass(frozen=True, slots=True)
class Term:
    """An amount with its 90 % interval: 0 <= ``low`` <= ``value`` <= ``high``."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTerm:
    """One term in its own unit, or its bounds if it is unknown.

    ``drift`` is None if one half of the history does not identify it.
    """

    rate: str
    term: Term
    verdict: Verdict
    partners: tuple[str, ...]
    drift: Drift | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result for one class and resource; ``refused`` says why there are no terms.

    ``typical_error`` is half the 90 % interval of the cost of typical traffic, relative to it;
    entangled terms do not affect it. None if the cost is 0.
    """

    refused: str | None
    terms: tuple[FoundTerm, ...]
    condition: float
    typical_error: float | None
    drift: Drift | None
    blocks: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Learned:
    """All findings by class and resource, and backgrounds by unit and resource."""

    statistics: RowStatistics
    findings: dict[tuple[int, int], Finding]
    backgrounds: dict[tuple[int, int], Term]
    trial: Trial


def learn(source: Source, class_of: "list[int] | tuple[int, ...]") -> Learned:
    """Return the findings for the classes of all units, of which there is at least one."""
    statistics = row_statistics(source, class_of)
    state = fit(source, statistics)
    closed = closing(source, statistics, state)
    pulled = pulls(source, statistics, state, closed)
    estimates = combined(state, closed, pulled)
    state = settled(statistics, state, closed, estimates)
    trial = tried(source, statistics, state)
    found = _Found(statistics, state, closed, pulled, estimates)
    findings = {
        (number, resource): found.finding(number, resource)
        for number, resource in np.ndindex(statistics.classes, len(RESOURCES))
    }
    return Learned(
        statistics=statistics,
        findings=findings,
        backgrounds=found.backgrounds(findings),
        trial=trial,
    )


@dataclass(frozen=True, eq=False)
class _Found:
    statistics: RowStatistics
    state: State
    closed: Closing
    pulled: Pulls
    estimates: Estimates

    def finding(self, number: int, resource: int) -> Finding:
        estimate = self.estimates[number, ALL, resource]
        blocks = int(self.pulled.blocks[number, ALL, resource])
        refused = self._refused(number, resource, blocks)
        first, last = (self.estimates[number, part, resource] for part in (FIRST, LAST))
        return Finding(
            refused=refused,
            terms=() if refused else self._terms(number, resource, estimate),
            condition=condition(estimate.gram),
            typical_error=_typical_error(estimate),
            drift=None if refused else drift_of_all(first, last),
            blocks=blocks,
        )

    def _refused(self, number: int, resource: int, blocks: int) -> str | None:
        statistics = self.statistics
        measured = int(statistics.measured[number, resource])
        whole = measured - int(statistics.full[number, resource])
        if measured == 0:
            return "was never measured"
        if whole < LEAST_MINUTES:
            text = f"{whole} minutes below {_PERCENT} % of the limit"
            return f"has {text}; expected {LEAST_MINUTES} or more"
        if blocks < LEAST_BLOCKS:
            return f"has {blocks} stretches of time; expected {LEAST_BLOCKS} or more"
        units = self.statistics.units_of(number)
        weight = float(self.closed.middles.weight[units, ALL, resource].sum())
        slopes = self.closed.slopes[number, ALL, resource, :2].sum(axis=0)
        most = float(np.diag(slopes).max())
        variation = float(np.sqrt(most / weight)) if weight > 0 and most > 0 else 0.0
        if variation < LEAST_VARIATION:
            text = f"{variation:.2%} of its mean within brokers"
            return f"traffic varied by {text}; expected {LEAST_VARIATION:.0%} or more"
        return None

    def _terms(self, number: int, resource: int, estimate: Estimate) -> tuple[FoundTerm, ...]:
        most = self._most(number, resource)
        usage = float(self.statistics.usage[self.statistics.units_of(number), resource].mean())
        partners = entangled(estimate.gram)
        halves = [self.estimates[number, part, resource] for part in (FIRST, LAST)]
        found = []
        for term, rate in enumerate(RATES):
            bound = float(most[term])
            if not np.isfinite(bound):
                continue
            value = min(float(estimate.costs[term]), bound)
            low, high = interval(term, estimate.free, estimate.precision, bound, estimate.freedom)
            low, high = min(low, value), max(high, value)
            text = verdict(
                varied=bool(estimate.gram[term, term] > 0),
                partners=partners[term],
                low=low,
                value=value,
                high=high,
                usage=usage,
            )
            scale = float(self.statistics.scale[number, term])
            found.append(
                FoundTerm(
                    rate=rate,
                    term=Term(value / scale, low / scale, high / scale),
                    verdict=text,
                    partners=partners[term],
                    drift=drift_of(term, *halves),
                )
            )
        return tuple(found)

    def _most(self, number: int, resource: int) -> FloatArray:
        """Return upper bounds of the terms: one term causes the whole usage of a broker."""
        units = self.statistics.units_of(number)
        rates = self.statistics.rates[units] / self.statistics.scale[number]
        usage = self.statistics.usage[units, resource]
        # Brokers with little of the rate are excluded: their means have large errors.
        enough = rates > 0.5 * rates.mean(axis=0)
        with np.errstate(divide="ignore"):
            bound = np.where(enough, usage[:, np.newaxis] / rates, np.inf)
        return np.asarray(bound.min(axis=0))

    def backgrounds(self, findings: dict[tuple[int, int], Finding]) -> dict[tuple[int, int], Term]:
        """Return the usage of each unit without traffic, for resources with terms."""
        variances = background_variances(
            self.statistics, self.closed, self.pulled, self.estimates, ALL
        )
        found = {}
        for unit, resource in np.ndindex(*variances.shape):
            number = int(self.statistics.class_of[unit])
            if findings[number, resource].refused or not np.isfinite(variances[unit, resource]):
                continue
            estimate = self.estimates[number, ALL, resource]
            away = zero_traffic(self.statistics, self.closed, unit, ALL, resource)
            middle = self.closed.middles.rates[unit, ALL, resource]
            at_middle = self.state.background[ALL, unit, resource] + middle @ estimate.costs
            value = float(at_middle - away @ estimate.costs)
            reach = student_95(estimate.freedom) * float(np.sqrt(variances[unit, resource]))
            found[unit, resource] = _term(value, reach)
        return found


_PERCENT: Final = 90


def _typical_error(estimate: Estimate) -> float | None:
    varied = (np.diag(estimate.gram) > 0).astype(np.float64)
    amount = float(varied @ estimate.costs)
    deviation = float(np.sqrt(varied @ estimate.covariance @ varied))
    return student_95(estimate.freedom) * deviation / amount if amount > 0 else None


def _term(value: float, reach: float) -> Term:
    """Return a non-negative amount with its interval."""
    return Term(max(value, 0.0), max(value - reach, 0.0), max(value + reach, 0.0))
