"""The ratings of docs/strategies.md: every pair of strategies at the five problems of PIP-364.

As a command (`make ratings`) it measures the pairs that are named, adds them to the figures of
tests/ratings, and writes docs/strategies.md; with `--out` it writes the figures there alone, and
with `--guide` it measures nothing.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from textwrap import fill
from typing import Any, Final

import numpy as np
from all_placements import runs_of_placements
from markdown_tables import table
from numpy.typing import NDArray
from strategy_guide import strategy_guide

from loadmanager.config.strategies import SHEDDER_NAMES, placements_of
from loadmanager.simulator.results import Run, returned
from loadmanager.simulator.scenario_files import find, load_scenario
from loadmanager.simulator.simulation_jobs import Job, results_of
from loadmanager.simulator.strategies import MODES, Mode, Strategy, parse_strategies

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "tests" / "ratings"
GUIDE: Final = ROOT / "docs" / "strategies.md"
DOCUMENT: Final[Mapping[str, Any]] = tomllib.loads((FOLDER / "ratings.toml").read_text("utf-8"))
PROBLEMS: Final[Mapping[str, Mapping[str, Any]]] = {
    one["scenario"]: one for one in DOCUMENT["problems"]
}
"""The problems by their scenarios."""
PIP_364: Final[Mapping[str, Mapping[str, str]]] = DOCUMENT["pip_364"]
"""The ratings in PIP-364, by pair and scenario."""

Table = NDArray[np.float64]


def _usage(run: Run) -> Table:
    """Return the demand on the scarcest resource of each broker (T, B), NaN while absent."""
    return np.asarray(run.timeline.demand.max(axis=2), dtype=np.float64)


def _rows(run: Run, prefix: str) -> list[int]:
    return [row for row, name in enumerate(run.timeline.brokers) if name.startswith(prefix)]


def _late(run: Run) -> NDArray[np.bool_]:
    return np.asarray(run.timeline.time_s >= run.duration_s - 600.0)


def _fullest(usage: Table) -> Table:
    return np.asarray(np.where(np.isnan(usage), -np.inf, usage).max(axis=1))


def _bundles(run: Run) -> float:
    return float(run.timeline.bundles[-1].sum())


def _points_too_full(run: Run) -> float:
    late = _late(run)
    return float(np.median(_fullest(_usage(run))[late] - run.timeline.bound[late])) * 100.0


def _points_apart(run: Run) -> float:
    alike = _usage(run)[_late(run)][:, _rows(run, "free-")]
    return float(np.median(alike.max(axis=1) - alike.min(axis=1))) * 100.0


def _percent_taken_back(run: Run) -> float:
    return 100.0 * returned(run.moves) / _bundles(run)


def _percent_moved_an_hour(run: Run) -> float:
    owned = [move for move in run.moves if move.source is not None]
    return 100.0 * len(owned) / (run.duration_s / 3600.0) / _bundles(run)


def _over_placed(run: Run) -> float:
    time_s = run.timeline.time_s
    # A minute after the last of three brokers left, and the quarter of an hour from then on.
    soon = (time_s >= 720.0) & (time_s <= 720.0 + 900.0)
    return float((_fullest(_usage(run))[soon] / run.timeline.bound[soon]).max())


def _percent_below_mean(run: Run) -> float:
    """Return how far the broker that lost most load fell below the mean after the join, or 0."""
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


def minutes_to_spread(run: Run) -> float:
    """Return when an eighth of the load is misplaced for good, infinity for never."""
    after = run.timeline.time_s > run.warm_up_s
    far = np.flatnonzero(misplaced(run)[after] > 0.125)
    time_s = run.timeline.time_s[after] - run.warm_up_s
    if not far.size:
        return 0.0
    return float(time_s[far[-1] + 1]) / 60.0 if far[-1] + 1 < len(time_s) else math.inf


_FIGURES: Final[Mapping[str, Callable[[Run], float]]] = {
    "too_full": _points_too_full,
    "apart": _points_apart,
    "back": _percent_taken_back,
    "moved": _percent_moved_an_hour,
    "peak": _over_placed,
    "below": _percent_below_mean,
    "minutes": minutes_to_spread,
}


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    scenario: str
    mode: Mode
    pair: str

    def job(self, seed: int) -> Job:
        return Job(
            name=self.scenario,
            scenario=load_scenario(find(self.scenario)),
            strategy=Strategy.parse(self.pair, self.mode),
            seed=seed,
        )


Figures = dict[Cell, Mapping[str, Sequence[float]]]
"""The figures of cells by the keys of measures, one for each seed."""


def every_cell() -> list[Cell]:
    return [
        Cell(scenario, mode, pair.name)
        for scenario in PROBLEMS
        for mode in MODES
        for pair in parse_strategies("*")
    ]


def rating(scenario: str, figures: Mapping[str, float]) -> str:
    found = {
        "good"
        if figures[one["key"]] <= one["good_to"]
        else "normal"
        if figures[one["key"]] <= one["normal_to"]
        else "bad"
        for one in PROBLEMS[scenario]["measures"]
    }
    return next(one for one in ("bad", "normal", "good") if one in found)


def medians(figures: Figures, cell: Cell) -> dict[str, float]:
    return {key: statistics.median(found) for key, found in figures[cell].items()}


def to_json(figures: Figures) -> str:
    """Return a line for each cell; "never" is null."""
    lines = [
        json.dumps(
            {
                "scenario": cell.scenario,
                "mode": cell.mode,
                "pair": cell.pair,
                "figures": {
                    key: [one if math.isfinite(one) else None for one in of]
                    for key, of in found.items()
                },
            }
        )
        for cell, found in sorted(figures.items())
    ]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def from_json(text: str) -> Figures:
    return {
        Cell(one["scenario"], one["mode"], one["pair"]): {
            key: [math.inf if value is None else float(value) for value in found]
            for key, found in one["figures"].items()
        }
        for one in json.loads(text)
    }


def figures_of_placements(job: Job) -> dict[str, dict[str, float]]:
    return {
        replace(job.strategy, placement=name).name: {
            one["key"]: float(f"{_FIGURES[one['key']](run):.4g}")
            for one in PROBLEMS[job.name]["measures"]
        }
        for name, run in runs_of_placements(job).items()
    }


def measure(pairs: Collection[str], seeds: int = 1, processes: int = 1) -> Iterator[Figures]:
    firsts = {
        (cell.scenario, cell.mode, cell.pair.partition("+")[0]): cell
        for cell in every_cell()
        if cell.pair in pairs
    }
    jobs = (cell.job(seed) for cell in firsts.values() for seed in range(1, seeds + 1))
    with closing(results_of(jobs, figures_of_placements, processes=processes)) as results:
        for first in firsts.values():
            each = [found for _, found in islice(results, seeds)]
            yield {
                replace(first, pair=pair): {key: [one[pair][key] for one in each] for key in of}
                for pair, of in each[0].items()
                if pair in pairs
            }


def differing(figures: Figures) -> list[Cell]:
    cells = [
        Cell(scenario, "parity", pair) for pair, theirs in PIP_364.items() for scenario in theirs
    ]
    return [
        cell
        for cell in cells
        if rating(cell.scenario, medians(figures, cell)) != PIP_364[cell.pair][cell.scenario]
    ]


def guide(figures: Figures) -> str:
    page = (FOLDER / "guide.md").read_text("utf-8")
    return strategy_guide(
        page.format(
            seeds=max(len(found) for of in figures.values() for found in of.values()),
            choose=_advice("choose"),
            avoid=_advice("avoid"),
            good=_wrapped(_good_pairs(figures)),
            thresholds=_thresholds(),
            compared=_compared(figures),
            differences=_wrapped(_differences(figures)),
            pairs=_all_pairs(figures),
        )
    )


def _wrapped(texts: Iterable[str]) -> str:
    return "\n".join(
        fill(one, 100, subsequent_indent="  ", break_on_hyphens=False) for one in texts
    )


def _advice(kind: str) -> str:
    rows = [
        (one["situation"], f"`{one['pair']}`", one["why"], f"`{one['scenario']}`")
        for one in DOCUMENT[kind]
    ]
    column = {"choose": "choose", "avoid": "rather not"}[kind]
    return "\n".join(table(("situation", column, "why", "scenario"), rows))


def _good_pairs(figures: Figures) -> Iterator[str]:
    for scenario, problem in PROBLEMS.items():
        found: list[str] = []
        for shedder in SHEDDER_NAMES:
            mine = [
                cell.pair
                for cell in (
                    Cell(scenario, "safe", f"{shedder}+{one}") for one in placements_of(shedder)
                )
                if rating(scenario, medians(figures, cell)) == "good"
            ]
            all_of_several = len(mine) > 1 and len(mine) == len(placements_of(shedder))
            found += [f"{shedder}+*"] if all_of_several else mine
        yield f"- {problem['name']}: {', '.join(f'`{one}`' for one in found) or 'none'}"


def _thresholds() -> str:
    rows = [
        (
            problem["name"],
            f"`{scenario}`",
            one["says"],
            one["unit"],
            *("any" if math.isinf(one[to]) else f"{one[to]:g}" for to in ("good_to", "normal_to")),
        )
        for scenario, problem in PROBLEMS.items()
        for one in problem["measures"]
    ]
    columns = ("problem", "scenario", "figure", "unit", "good up to", "normal up to")
    return "\n".join(table(columns, rows))


def _compared(figures: Figures) -> str:
    rows: list[Sequence[str]] = []
    for pair, theirs in PIP_364.items():
        rows.append((f"`{pair}`", "PIP-364", *(theirs[scenario] for scenario in PROBLEMS)))
        rows += [("", f"`{mode}`", *_ratings(figures, mode, pair)) for mode in reversed(MODES)]
    return "\n".join(table(("pair", "", *(one["name"] for one in PROBLEMS.values())), rows))


def _differences(figures: Figures) -> Iterator[str]:
    for cell in differing(figures):
        found = medians(figures, cell)
        said = {key: _shown(figure) for key, figure in found.items()}
        comment = DOCUMENT["comments"][cell.pair][cell.scenario].format(**said)
        theirs, ours = PIP_364[cell.pair][cell.scenario], rating(cell.scenario, found)
        name = PROBLEMS[cell.scenario]["name"]
        yield f"- **{cell.pair}, {name}**: {theirs} there, {ours} here. {comment}"


def _all_pairs(figures: Figures) -> str:
    rows = []
    for one in parse_strategies("*"):
        both = zip(*(_ratings(figures, mode, one.name) for mode in ("parity", "safe")), strict=True)
        rows.append((f"`{one.name}`", *(" / ".join(dict.fromkeys(cells)) for cells in both)))
    return "\n".join(table(("pair", *(one["name"] for one in PROBLEMS.values())), rows))


def _ratings(figures: Figures, mode: Mode, pair: str) -> list[str]:
    cells = []
    for scenario in PROBLEMS:
        found = medians(figures, Cell(scenario, mode, pair))
        rated = rating(scenario, found)
        said = ", ".join(_shown(figure) for figure in found.values())
        cells.append(f"{'**bad**' if rated == 'bad' else rated} ({said})")
    return cells


def _shown(figure: float) -> str:
    return "never" if math.isinf(figure) else f"{figure:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", default="*", help="as `loadmanager simulate --strategy`")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None, help="write these figures alone, here")
    parser.add_argument("--guide", action="store_true", help="only write docs/strategies.md")
    given = parser.parse_args()
    kept = FOLDER / "figures.json"
    figures: Figures = {} if given.out else from_json(kept.read_text("utf-8"))
    pairs = [] if given.guide else [one.name for one in parse_strategies(given.pairs)]
    began_s = time.monotonic()
    for found in measure(pairs, given.seeds, len(os.sched_getaffinity(0))):
        figures |= found
        for cell in found:
            said = ", ".join(f"{key} {one:g}" for key, one in medians(found, cell).items())
            rated = rating(cell.scenario, medians(found, cell))
            sys.stdout.write(f"{cell.scenario}, {cell.mode}, {cell.pair}: {rated} ({said})\n")
        sys.stderr.write(f"{time.monotonic() - began_s:.0f} s\n")
    (given.out or kept).write_text(to_json(figures), "utf-8")
    if not given.out:
        GUIDE.write_text(guide(figures), "utf-8")


if __name__ == "__main__":
    main()
