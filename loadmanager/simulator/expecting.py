"""Comparison of the expectations of a scenario with the scores of strategies."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from loadmanager.simulator.scenario import Expectation
from loadmanager.simulator.scores import SCORE_DOCS
from loadmanager.simulator.simulation_jobs import Compared, Spread
from loadmanager.simulator.strategies import Strategy, matches

_NEVER = float("inf")


class Outcome(StrEnum):
    HELD = "held"
    FAILED = "failed"
    SHOWN = "known failure shown"
    NOT_SHOWN = "known failure not shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One expectation for one strategy, and the spread of the score over the seeds."""

    name: str
    strategy: Strategy
    expectation: Expectation
    found: Spread
    seeds: int

    @property
    def holds(self) -> bool:
        """Whether the median is within the bounds; "never" is above all."""
        median = _NEVER if self.found.median is None else self.found.median
        least, most = self.expectation.least, self.expectation.most
        return (least is None or median >= least) and (most is None or median <= most)

    @property
    def outcome(self) -> Outcome:
        """The outcome; the bounds of a known failure hold if the failure happens."""
        if self.expectation.known_failure:
            return Outcome.SHOWN if self.holds else Outcome.NOT_SHOWN
        return Outcome.HELD if self.holds else Outcome.FAILED

    @property
    def expected(self) -> str:
        one = self.expectation
        bounds = [f"at least {one.least:g}"] if one.least is not None else []
        bounds += [f"at most {one.most:g}"] if one.most is not None else []
        return " ".join([one.score, " and ".join(bounds), _unit(one.score)]).strip()

    @property
    def figures(self) -> str:
        found = self.found
        if self.seeds == 1 or found.least == found.most:
            return _figure(found.median)
        between = f"{_figure(found.least)} to {_figure(found.most)}"
        return f"{_figure(found.median)} ({between} over {self.seeds} seeds)"

    def __str__(self) -> str:
        text = (
            f"{self.outcome}: {self.name}: {self.strategy.name}, {self.strategy.mode}: "
            f"expected {self.expected}; found {self.figures}"
        )
        known = self.expectation.known_failure
        return f"{text} ({known})" if known else text


def judged(expectations: Iterable[Expectation], found: Compared) -> Iterator[Judged]:
    strategy = found.strategy
    for one in expectations:
        if one.mode is not None and one.mode != strategy.mode:
            continue
        if any(matches(pattern, strategy.name) for pattern in one.strategies):
            yield Judged(
                name=found.name,
                strategy=strategy,
                expectation=one,
                found=found.spreads[one.score],
                seeds=len(found.seeds),
            )


def _figure(value: float | None) -> str:
    return "never" if value is None else f"{value:.4g}"


def _unit(score: str) -> str:
    return next(doc.unit for doc in SCORE_DOCS if doc.name == score)
