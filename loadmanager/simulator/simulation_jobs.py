"""Many simulations in parallel: scenarios by strategies by seeds, and their results in order."""

import multiprocessing
import signal
import statistics
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby, islice
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Final, TypeVar

from loadmanager.charts import Html
from loadmanager.config import ConfigError
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.planner import Planner
from loadmanager.simulator.engine import simulate
from loadmanager.simulator.picture import picture_of
from loadmanager.simulator.results import SCORE_DOCS, Run, Scores, Witness, scores_of
from loadmanager.simulator.scenario import Expectation, Scenario, ScenarioError
from loadmanager.simulator.scenario_files import find, load_scenario
from loadmanager.simulator.strategies import Strategy, planner_for

T = TypeVar("T")
JobT = TypeVar("JobT")

RANKING: Final = (
    "best first: smallest gap to the lower bound with the price of the moves (to 0.01), then "
    "least overload (whole broker-minutes), then least interruption of clients"
)
"""How `ranked` orders strategies."""

_AHEAD: Final = 4
"""Queued jobs per process: enough to keep it busy, few enough for the memory."""

_NEVER: Final = float("inf")


class SimulationDied(LoadManagerError):
    def __init__(self, job: object) -> None:
        super().__init__(
            f"a process ended during simulations, about at {job}; "
            "was it killed, or is there too little memory? Fewer --jobs need less"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run: a scenario under the name it was requested by, a strategy, a seed."""

    name: str
    scenario: Scenario
    strategy: Strategy
    seed: int

    def __str__(self) -> str:
        return f"{self.name} with {self.strategy.name}, {self.strategy.mode}, seed {self.seed}"


Witnessed = Callable[[Job, Planner], AbstractContextManager[Witness]]
"""Creates a witness for each run, open for as long as the run lasts."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A score over the seeds. None stands for "never" and is above any number."""

    median: float | None
    least: float | None
    most: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    name: str
    strategy: Strategy
    seeds: tuple[int, ...]
    runs: tuple[Scores, ...]
    spreads: dict[str, Spread]

    def median(self, score: str) -> float | None:
        return self.spreads[score].median


def jobs_of(
    scenarios: Iterable[tuple[str, Scenario]],
    strategies: Sequence[Strategy],
    seeds: int,
    first_seed: int | None = None,
) -> Iterator[Job]:
    """Yield all runs: scenario by scenario, strategy by strategy, seed by seed.

    Seeds are consecutive, from that of the scenario or from ``first_seed``.
    """
    for name, scenario in scenarios:
        first = scenario.seed if first_seed is None else first_seed
        for strategy in strategies:
            for seed in range(first, first + seeds):
                yield Job(name=name, scenario=scenario, strategy=strategy, seed=seed)


def run_job(job: Job, witnessed: Witnessed | None = None) -> Run:
    """Raises `ConfigError`: a setting is wrong; `ScenarioError`: the trace cannot be read."""
    planner = planner_for(job.scenario, job.strategy)
    with witnessed(job, planner) if witnessed else nullcontext() as witness:
        return simulate(job.scenario, planner, seed=job.seed, witness=witness)


def results_of(
    jobs: Iterable[JobT], look: Callable[[JobT], T], *, processes: int
) -> Generator[tuple[JobT, T], None, None]:
    """Yield each job and the result of ``look``, in the order of ``jobs``.

    The results and their order do not depend on the number of processes. With one, all
    jobs run in this process; with more, ``look`` has to be importable by name, and its
    results have to be picklable. Raises `SimulationDied`: a process ended early.
    """
    if processes == 1:
        for job in jobs:
            yield job, look(job)
        return
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    try:
        yield from _in_turn(pool, jobs, look, processes * _AHEAD)
    finally:
        # After an error or Ctrl-C, running jobs are not waited for.
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
            child.join()


def compared(results: Iterable[tuple[Job, Scores]]) -> Iterator[Compared]:
    """Yield the scores of each strategy and scenario as soon as all seeds are complete."""
    for (name, strategy), group in groupby(results, lambda one: (one[0].name, one[0].strategy)):
        done = list(group)
        runs = tuple(scores for _, scores in done)
        yield Compared(
            name=name,
            strategy=strategy,
            seeds=tuple(job.seed for job, _ in done),
            runs=runs,
            spreads={key: _spread_of([getattr(one, key) for one in runs]) for key in SCORE_DOCS},
        )


def ranked(found: Iterable[Compared]) -> list[Compared]:
    """Return the strategies of one scenario, best first by `RANKING`; the sort is stable."""

    def rank(one: Compared) -> tuple[float, ...]:
        scores = (one.median(key) for key in ("priced_gap", "overload_min", "interrupted_client_s"))
        gap, overload_min, interrupted = (_NEVER if one is None else one for one in scores)
        return round(gap, 2), round(overload_min, 0), interrupted

    return sorted(found, key=rank)


def _spread_of(values: Sequence[float | None]) -> Spread:
    """Return median, least and most; unknown and "never" count as infinite."""
    known = [_NEVER if value is None or value != value else value for value in values]  # noqa: PLR0124 - NaN alone differs from itself
    found = (statistics.median(known), min(known), max(known))
    return Spread(*(None if value == _NEVER else value for value in found))


def _in_turn(
    pool: ProcessPoolExecutor, jobs: Iterable[JobT], look: Callable[[JobT], T], ahead: int
) -> Iterator[tuple[JobT, T]]:
    left = iter(jobs)
    given: deque[tuple[JobT, Future[T]]] = deque()

    def give(count: int) -> None:
        with _interrupts_for_this_process_alone():
            given.extend((job, pool.submit(look, job)) for job in islice(left, count))

    give(ahead)
    while given:
        job, future = given.popleft()
        try:
            result = future.result()
            give(1)
        except BrokenProcessPool:
            raise SimulationDied(job) from None
        yield job, result


@contextmanager
def _interrupts_for_this_process_alone() -> Iterator[None]:
    """Block SIGINT, which a terminal sends to all processes, in processes that are started here.

    They inherit the signal mask. A SIGINT during this time interrupts this process afterwards,
    which then ends the others. Blocking alone is not sufficient: another thread, such as one of
    numpy, may receive the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread is interrupted, and it did not start these processes.
        return
    noticed: list[int] = []
    # The resource tracker starts with the first process and would unblock Ctrl-C.
    resource_tracker.ensure_running()
    handled = signal.signal(signal.SIGINT, lambda number, _: noticed.append(number))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGINT, handled)
        if noticed:
            signal.raise_signal(signal.SIGINT)


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
        return " ".join([one.score, " and ".join(bounds), SCORE_DOCS[one.score].unit]).strip()

    @property
    def figures(self) -> str:
        found = self.found
        median, least, most = (
            "never" if value is None else f"{value:.4g}"
            for value in (found.median, found.least, found.most)
        )
        if self.seeds == 1 or found.least == found.most:
            return median
        return f"{median} ({least} to {most} over {self.seeds} seeds)"

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
        if any(fnmatchcase(strategy.name, pattern) for pattern in one.strategies):
            yield Judged(
                name=found.name,
                strategy=strategy,
                expectation=one,
                found=found.spreads[one.score],
                seeds=len(found.seeds),
            )


Examined = tuple[Scores, Html | None]
"""The part of a run that is kept; it is small enough to be sent between processes."""


def _examined(
    job: Job, *, pictured: bool, first_seed: int | None, witnessed: Witnessed | None
) -> Examined:
    """Return the scores of a run, and if ``pictured`` the picture of the first seed."""
    run = run_job(job, witnessed)
    first = job.scenario.seed if first_seed is None else first_seed
    return scores_of(run), picture_of(run) if pictured and job.seed == first else None


@dataclass(frozen=True, eq=False, slots=True)
class Finding:
    """The results of one scenario, best strategy first; a picture of the first seed of each."""

    name: str
    scenario: Scenario
    found: Sequence[Compared]
    judged: Sequence[Judged]
    pictures: Mapping[Strategy, Html]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Comparison:
    """The simulations to run. ``scenarios`` are by the names by which they were requested.

    With another trace or other settings expectations are not judged: they are only valid for the
    unchanged scenario. ``witnessed`` has to be picklable for more than one process.
    """

    scenarios: Mapping[str, Scenario]
    strategies: Sequence[Strategy]
    seeds: int = 1
    first_seed: int | None = None
    pictured: bool = False
    witnessed: Witnessed | None = None
    judging: bool = True

    @property
    def runs(self) -> int:
        return len(self.scenarios) * len(self.strategies) * self.seeds

    def jobs(self) -> Iterator[Job]:
        return jobs_of(self.scenarios.items(), self.strategies, self.seeds, self.first_seed)

    def findings(
        self, processes: int, on_done: Callable[[Job], None] = lambda _: None
    ) -> Generator[Finding, None, None]:
        """Yield the results of each scenario as soon as they are complete, in order.

        ``on_done`` is called after each run. Raises `SimulationDied`: a process ended early;
        `ScenarioError`: a trace cannot be read.
        """
        look = partial(
            _examined, pictured=self.pictured, first_seed=self.first_seed, witnessed=self.witnessed
        )
        processes = min(processes, self.runs)
        with closing(results_of(self.jobs(), look, processes=processes)) as results:
            for name, of_scenario in groupby(results, key=lambda one: one[0].name):
                done: list[tuple[Job, Scores]] = []
                pictures: dict[Strategy, Html] = {}
                for job, (scores, picture) in of_scenario:
                    on_done(job)
                    done.append((job, scores))
                    if picture is not None:
                        pictures[job.strategy] = picture
                found = ranked(compared(done))
                expectations = self.scenarios[name].expect if self.judging else ()
                verdicts = [verdict for one in found for verdict in judged(expectations, one)]
                yield Finding(name, self.scenarios[name], found, verdicts, pictures)


def load_scenarios(asked: Iterable[str], trace: Path | None = None) -> dict[str, Scenario]:
    """Return the scenarios by name or path; ``trace`` replaces their loads.

    Raises `ScenarioError`: with all faults of all of them.
    """
    found: dict[str, Scenario] = {}
    faults: list[str] = []
    for name in dict.fromkeys(asked):
        try:
            found[name] = load_scenario(find(name), trace=trace)
        except ScenarioError as error:
            faults += error.faults
    if faults:
        raise ScenarioError(faults)
    return found


def check_settings(scenarios: Iterable[Scenario], strategies: Sequence[Strategy]) -> None:
    """Raises `ConfigError`: with all faults of the strategies' settings."""
    faults: dict[str, None] = {}
    for scenario in scenarios:
        for strategy in strategies:
            try:
                planner_for(scenario, strategy)
            except ConfigError as error:
                faults |= dict.fromkeys(error.faults)
    if faults:
        raise ConfigError(list(faults))
