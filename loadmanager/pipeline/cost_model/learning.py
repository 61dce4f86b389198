"""The whole estimation, from rows to findings for every class and resource."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from loadmanager.core.scores import RESOURCES, FloatArray
from loadmanager.pipeline.confidence import student_95
from loadmanager.pipeline.cost_model.combining import (
    Estimate,
    Estimates,
    background_variances,
    combined,
    settled,
    zero_traffic,
)
from loadmanager.pipeline.cost_model.drift import Drift, drift_of, drift_of_all
from loadmanager.pipeline.cost_model.identifiability import Verdict, condition, entangled, verdict
from loadmanager.pipeline.cost_model.intervals import interval
from loadmanager.pipeline.cost_model.normal_equations import State
from loadmanager.pipeline.cost_model.regression import fit
from loadmanager.pipeline.cost_model.row_statistics import RowStatistics, row_statistics
from loadmanager.pipeline.cost_model.rows import ALL, FIRST, LAST, RATES, Source
from loadmanager.pipeline.cost_model.uncertainty import Closing, Pulls, closing, pulls
from loadmanager.pipeline.cost_model.validation import Trial, tried

LEAST_MINUTES: Final = 240
LEAST_BLOCKS: Final = 20
LEAST_VARIATION: Final = 0.01


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
        variation = self._variation(number, resource)
        if variation < LEAST_VARIATION:
            text = f"{variation:.2%} of its mean within brokers"
            return f"traffic varied by {text}; expected {LEAST_VARIATION:.0%} or more"
        return None

    def _variation(self, number: int, resource: int) -> float:
        """Return the relative standard deviation within units of the rate that varies most."""
        units = self.statistics.units_of(number)
        weight = float(self.closed.middles.weight[units, ALL, resource].sum())
        slopes = self.closed.slopes[number, ALL, resource, :2].sum(axis=0)
        most = float(np.diag(slopes).max())
        return float(np.sqrt(most / weight)) if weight > 0 and most > 0 else 0.0

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
