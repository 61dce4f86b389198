"""Figures of the five problems of PIP-364, and their thresholds for good, normal and bad."""

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.columns import Mask
from loadmanager.simulator.run import Run
from loadmanager.simulator.scores import returned

Table = NDArray[np.float64]


class Rating(StrEnum):
    """PIP-364's three words."""

    GOOD = "good"
    NORMAL = "normal"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A figure of a run; less is better. Up to ``good_to`` it is good, up to ``normal_to`` normal.

    ``of`` returns infinity for "never".
    """

    key: str
    says: str
    unit: str
    good_to: float
    normal_to: float
    of: Callable[[Run], float]

    def rate(self, figure: float) -> Rating:
        """Return the rating of a figure."""
        if figure <= self.good_to:
            return Rating.GOOD
        return Rating.NORMAL if figure <= self.normal_to else Rating.BAD


@dataclass(frozen=True, slots=True)
class Problem:
    """One of the five problems, shown by a scenario; its rating is the worst of its measures."""

    scenario: str
    name: str
    measures: tuple[Measure, ...]

    def figures(self, run: Run) -> dict[str, float]:
        """Return the figures of a run by the keys of the measures."""
        return {measure.key: measure.of(run) for measure in self.measures}

    def rate(self, figures: Mapping[str, float]) -> Rating:
        """Return the rating of the figures of a run, or of medians over runs."""
        found = {measure.rate(figures[measure.key]) for measure in self.measures}
        return next(one for one in (Rating.BAD, Rating.NORMAL, Rating.GOOD) if one in found)


def _usage(run: Run) -> Table:
    """Return the demand on the scarcest resource of each broker (T, B), NaN while absent."""
    return np.asarray(run.timeline.demand.max(axis=2), dtype=np.float64)


def _rows(run: Run, prefix: str) -> list[int]:
    return [row for row, name in enumerate(run.timeline.brokers) if name.startswith(prefix)]


def _last(run: Run, minutes: float) -> Mask:
    return np.asarray(run.timeline.time_s >= run.duration_s - minutes * 60.0)


def _fullest(usage: Table) -> Table:
    return np.asarray(np.where(np.isnan(usage), -np.inf, usage).max(axis=1))


def _points_too_full(run: Run) -> float:
    late = _last(run, 10)
    return float(np.median(_fullest(_usage(run))[late] - run.timeline.bound[late])) * 100.0


def _points_apart(run: Run) -> float:
    alike = _usage(run)[_last(run, 10)][:, _rows(run, "free-")]
    return float(np.median(alike.max(axis=1) - alike.min(axis=1))) * 100.0


def _percent_taken_back(run: Run) -> float:
    back = returned(run.moves, run.moves_count_from_s)
    return 100.0 * back / float(run.timeline.bundles[-1].sum())


def _percent_moved_an_hour(run: Run) -> float:
    since_s = run.moves_count_from_s
    owned = [move for move in run.moves if move.source is not None and move.at_s >= since_s]
    hours = (run.duration_s - since_s) / 3600.0
    return 100.0 * len(owned) / hours / float(run.timeline.bundles[-1].sum())


_SHRUNK_S: Final = 720.0
"""A minute after the last of the three brokers of the third problem left."""


def _over_placed(run: Run) -> float:
    time_s = run.timeline.time_s
    soon = (time_s >= _SHRUNK_S) & (time_s <= _SHRUNK_S + 900.0)
    return float((_fullest(_usage(run))[soon] / run.timeline.bound[soon]).max())


def _percent_below_mean(run: Run) -> float:
    """Return how far the broker that lost most load fell below the mean after the join.

    It is 0 if no broker did, for example because nothing was unloaded.
    """
    usage = _usage(run)[run.timeline.time_s > run.warm_up_s + 60.0]
    mean = np.nanmean(usage, axis=1)
    least = usage[:, _rows(run, "old-")].min(axis=1)
    return max(float(((mean - least) / mean).max()), 0.0) * 100.0


def misplaced(run: Run) -> Table:
    """Return (T,) the fraction of all load that is above the mean of the present brokers."""
    usage = _usage(run)
    there = ~np.isnan(usage)
    load = np.where(there, usage, 0.0)
    mean = load.sum(axis=1) / there.sum(axis=1)
    above = np.where(there, np.maximum(load - mean[:, np.newaxis], 0.0), 0.0)
    return np.asarray(above.sum(axis=1) / load.sum(axis=1))


_BALANCED: Final = 0.125
"""A quarter of the misplaced load when the number of brokers doubles."""


def _minutes_to_spread(run: Run) -> float:
    after = run.timeline.time_s > run.warm_up_s
    far = misplaced(run)[after] > _BALANCED
    time_s = run.timeline.time_s[after] - run.warm_up_s
    if not far.any():
        return 0.0
    last = int(np.flatnonzero(far)[-1])
    return float(time_s[last + 1]) / 60.0 if last + 1 < len(time_s) else math.inf


_FIGURES: Final[Mapping[str, Callable[[Run], float]]] = {
    "too_full": _points_too_full,
    "apart": _points_apart,
    "back": _percent_taken_back,
    "moved": _percent_moved_an_hour,
    "peak": _over_placed,
    "below": _percent_below_mean,
    "minutes": _minutes_to_spread,
}


def _problem(scenario: str, name: str, measures: Iterable[Mapping[str, Any]]) -> Problem:
    figures = tuple(Measure(**one, of=_FIGURES[one["key"]]) for one in measures)
    return Problem(scenario, name, figures)


PROBLEMS: Final = tuple(
    _problem(**one)
    for one in tomllib.loads(
        (resources.files(__package__) / "problems.toml").read_text(encoding="utf-8")
    )["problems"]
)
"""The content of problems.toml."""


def problem_of(scenario: str) -> Problem:
    """Return the problem of a scenario.

    Raises:
        KeyError: the scenario shows none of the five problems.
    """
    return {problem.scenario: problem for problem in PROBLEMS}[scenario]
