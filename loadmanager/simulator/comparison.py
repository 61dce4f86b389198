"""A comparison of strategies: scenarios, strategies and seeds, and the results of each run."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from loadmanager.config import ConfigError
from loadmanager.simulator.catalogue import find
from loadmanager.simulator.errors import ScenarioError
from loadmanager.simulator.expecting import Judged, judged
from loadmanager.simulator.picture import Picture, picture_of
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.scenario_files import load_scenario
from loadmanager.simulator.scores import Scores, scores_of
from loadmanager.simulator.simulation_jobs import (
    Compared,
    Job,
    Witnessed,
    compared,
    jobs_of,
    ranked,
    results_of,
    run_job,
)
from loadmanager.simulator.strategies import Strategy, planner_for


@dataclass(frozen=True, eq=False, slots=True)
class Examined:
    """The part of a run that is kept; it is small enough to be sent between processes."""

    scores: Scores
    picture: Picture | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Runs a job and returns the requested part of it; it is sent to worker processes.

    With ``pictured``, the first seed of each strategy has a picture. ``witnessed`` creates the
    witnesses of runs, and has to be picklable for more than one process.
    """

    pictured: bool
    first_seed: int | None
    witnessed: Witnessed | None

    def __call__(self, job: Job) -> Examined:
        run = run_job(job, self.witnessed)
        first = job.scenario.seed if self.first_seed is None else self.first_seed
        drawn = self.pictured and job.seed == first
        return Examined(scores_of(run), picture_of(run) if drawn else None)


@dataclass(frozen=True, eq=False, slots=True)
class Finding:
    name: str
    scenario: Scenario
    found: Sequence[Compared]
    judged: Sequence[Judged]
    pictures: Mapping[tuple[str, Strategy], Picture]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Comparison:
    """The simulations to run. ``scenarios`` are by the names by which they were requested.

    With another trace or other settings expectations are not judged: they are only valid for the
    unchanged scenario.
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

        Args:
            processes: how many simulate at a time.
            on_done: called after each run.

        Raises:
            SimulationDied: a process ended early.
            ScenarioError: a trace cannot be read.
        """
        look = Examination(
            pictured=self.pictured, first_seed=self.first_seed, witnessed=self.witnessed
        )
        pictures: dict[tuple[str, Strategy], Picture] = {}

        def scores(results: Iterable[tuple[Job, Examined]]) -> Iterator[tuple[Job, Scores]]:
            for job, examined in results:
                if examined.picture is not None:
                    pictures[job.name, job.strategy] = examined.picture
                on_done(job)
                yield job, examined.scores

        processes = min(processes, self.runs)
        with closing(results_of(self.jobs(), look, processes=processes)) as results:
            for name, found in groupby(compared(scores(results)), key=lambda one: one.name):
                best_first = ranked(found)
                # At this time the first run of the next scenario is complete as well.
                mine = {key: pictures.pop(key) for key in list(pictures) if key[0] == name}
                yield self._finding(name, best_first, mine)

    def _finding(
        self,
        name: str,
        found: Sequence[Compared],
        pictures: Mapping[tuple[str, Strategy], Picture],
    ) -> Finding:
        scenario = self.scenarios[name]
        expectations = scenario.expect if self.judging else ()
        verdicts = [verdict for one in found for verdict in judged(expectations, one)]
        return Finding(name, scenario, found, verdicts, pictures)


def load_scenarios(asked: Iterable[str], trace: Path | None = None) -> dict[str, Scenario]:
    """Return the scenarios by name or path; ``trace`` replaces their loads.

    Raises:
        ScenarioError: with all faults of all of them.
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
    """Check the settings of strategies before anything is simulated.

    Raises:
        ConfigError: with all faults.
    """
    faults: dict[str, None] = {}
    for scenario in scenarios:
        for strategy in strategies:
            try:
                planner_for(scenario, strategy)
            except ConfigError as error:
                faults |= dict.fromkeys(error.faults)
    if faults:
        raise ConfigError(list(faults))
