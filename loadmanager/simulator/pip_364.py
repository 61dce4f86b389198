"""Measured figures of every pair at the five problems of PIP-364, stored as files.

The files, one for each model, are part of the package, so that the guide can be printed without
simulations; ``loadmanager rate-strategies`` renews them.
"""

import json
import math
import statistics
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import islice
from typing import Final

from loadmanager.config.pairs import placements_of
from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.ids import BundleId
from loadmanager.core.memory import Memory
from loadmanager.core.placement import Placement, Ranking, Watching
from loadmanager.simulator.catalogue import find
from loadmanager.simulator.engine import simulate
from loadmanager.simulator.ratings import PROBLEMS, Problem, Rating, problem_of
from loadmanager.simulator.run import Run
from loadmanager.simulator.scenario import FORMER_MODEL, Scenario
from loadmanager.simulator.scenario_files import load_scenario
from loadmanager.simulator.simulation_jobs import Job, results_of, run_job
from loadmanager.simulator.strategies import MODES, Mode, Strategy, every_pair, planner_for


def runs_of_placements(job: Job) -> Mapping[str, Run]:
    """Return the run of ``job`` with each placement, by name of the placement.

    A shedder that chooses its targets, or moves nothing, may never call its placement: then the run
    with the first placement is that of all, and only that one is simulated.
    """
    found: dict[str, Run] = {}
    names = placements_of(job.strategy.shedder)
    for name in names:
        strategy = replace(job.strategy, placement=name)
        planner = planner_for(job.scenario, strategy)
        asked: list[BundleId] = []
        watched = _noticed(planner.placement, asked)
        run = simulate(
            job.scenario,
            replace(planner, placement=watched),
            strategy=strategy.name,
            seed=job.seed,
        )
        found[name] = run
        if not asked:
            return dict.fromkeys(names, run)
    return found


@dataclass(frozen=True, slots=True)
class _Noticed:
    """A placement that records the bundles for which it was called."""

    inner: Placement
    asked: list[BundleId]

    def rank(
        self, view: ClusterView, candidates: Indices, bundle: BundleId, memory: Memory
    ) -> Ranking:
        self.asked.append(bundle)
        return self.inner.rank(view, candidates, bundle, memory)


@dataclass(frozen=True, slots=True)
class _NoticedWatching(_Noticed):
    def watch(self, view: ClusterView, memory: Memory) -> Memory:
        inner = self.inner
        return inner.watch(view, memory) if isinstance(inner, Watching) else memory


def _noticed(placement: Placement, asked: list[BundleId]) -> Placement:
    kind = _NoticedWatching if isinstance(placement, Watching) else _Noticed
    return kind(placement, asked)


MODEL: Final = 2
"""The current model of the simulator."""

SEEDS: Final[Mapping[int, int]] = {FORMER_MODEL: 20, MODEL: 1}
"""The number of seeds of each median, by model."""

_SIGNIFICANT: Final = 4
_FILES: Final[Mapping[int, str]] = {FORMER_MODEL: "pip_364.json", MODEL: "pip_364_model_2.json"}


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One pair in one mode at one problem."""

    scenario: str
    mode: Mode
    pair: str


Samples = Mapping[str, Sequence[float]]
"""The measurements of one cell: the figures of all seeds in order, by measure."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of all cells."""

    cells: Mapping[Cell, Samples]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The measured problems."""
        known = {cell.scenario for cell in self.cells}
        return tuple(problem for problem in PROBLEMS if problem.scenario in known)

    @property
    def pairs(self) -> frozenset[str]:
        """The measured pairs."""
        return frozenset(cell.pair for cell in self.cells)

    def medians(self, cell: Cell) -> dict[str, float]:
        """Return the median over the seeds of each measure; infinity for "never"."""
        return {key: statistics.median(found) for key, found in self.cells[cell].items()}

    def rating(self, cell: Cell) -> Rating:
        """Return the rating of a cell's medians."""
        return problem_of(cell.scenario).rate(self.medians(cell))

    def to_json(self) -> str:
        """Return the figures as JSON: a line for each cell; "never" is null."""
        lines = [
            json.dumps(
                {
                    "scenario": cell.scenario,
                    "mode": cell.mode,
                    "pair": cell.pair,
                    "figures": {key: [_or_null(one) for one in of] for key, of in found.items()},
                }
            )
            for cell, found in sorted(self.cells.items())
        ]
        return "[\n" + ",\n".join(lines) + "\n]\n"

    @classmethod
    def from_json(cls, text: str) -> "Figures":
        """Return the figures in the output of `to_json`."""
        cells = {
            Cell(one["scenario"], one["mode"], one["pair"]): {
                key: [math.inf if value is None else float(value) for value in found]
                for key, found in one["figures"].items()
            }
            for one in json.loads(text)
        }
        return cls(cells)


@cache
def measured(model: int = MODEL) -> Figures:
    """Return the figures of one model that the package contains."""
    file = resources.files(__package__) / _FILES[model]
    return Figures.from_json(file.read_text(encoding="utf-8"))


def every_cell() -> tuple[Cell, ...]:
    """Return all cells: every valid pair, in both modes, at all problems."""
    return tuple(
        Cell(problem.scenario, mode, pair.name)
        for problem in PROBLEMS
        for mode in MODES
        for pair in every_pair()
    )


def job_of(cell: Cell, seed: int, model: int = MODEL) -> Job:
    """Return the job of one run of a cell."""
    return Job(
        name=cell.scenario,
        scenario=_scenario(cell.scenario, model),
        strategy=Strategy.parse(cell.pair, cell.mode),
        seed=seed,
    )


def figures_of(job: Job) -> dict[str, float]:
    """Simulate one run and return its rounded figures."""
    return _figures(job.name, run_job(job))


def figures_of_placements(job: Job) -> dict[str, dict[str, float]]:
    """Return the figures of a run with each placement, by name of the pair."""
    return {
        replace(job.strategy, placement=name).name: _figures(job.name, run)
        for name, run in runs_of_placements(job).items()
    }


def measure(
    scenarios: Collection[str],
    *,
    pairs: Collection[str] = (),
    seeds: int | None = None,
    model: int = MODEL,
    processes: int = 1,
) -> Generator[dict[Cell, Samples], None, None]:
    """Simulate the cells of some problems with seeds from 1 on, and yield the results.

    One dict is a shedder in one mode at one problem, with all placements, or those of ``pairs`` if
    any are given. The default number of ``seeds`` is that of `SEEDS`.
    """
    cells = [
        cell
        for cell in every_cell()
        if cell.scenario in scenarios and (not pairs or cell.pair in pairs)
    ]
    firsts = {(cell.scenario, cell.mode, _shedder(cell)): cell for cell in reversed(cells)}
    wanted = sorted(firsts.values(), key=cells.index)
    count = seeds or SEEDS[model]
    jobs = (job_of(cell, seed, model) for cell in wanted for seed in range(1, count + 1))
    with closing(results_of(jobs, figures_of_placements, processes=processes)) as results:
        for first in wanted:
            each = [found for _, found in islice(results, count)]
            yield {
                Cell(first.scenario, first.mode, pair): {
                    key: [one[pair][key] for one in each] for key in figures
                }
                for pair, figures in each[0].items()
                if not pairs or pair in pairs
            }


def _shedder(cell: Cell) -> str:
    return cell.pair.partition("+")[0]


def _figures(scenario: str, run: Run) -> dict[str, float]:
    found = problem_of(scenario).figures(run)
    return {key: _rounded(figure) for key, figure in found.items()}


@cache
def _scenario(name: str, model: int) -> Scenario:
    return load_scenario(find(name)).model_copy(update={"model": model})


def _rounded(figure: float) -> float:
    """Return a figure rounded to the stored digits."""
    return float(f"{figure:.{_SIGNIFICANT}g}")


def _or_null(figure: float) -> float | None:
    return figure if math.isfinite(figure) else None
