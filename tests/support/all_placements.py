"""Runs of a shedder with every placement; processes can import what looks at a job here."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from loadmanager.config.strategies import placements_of
from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.ids import BundleId
from loadmanager.core.memory import Memory
from loadmanager.core.placement import Placement, Ranking, Watching
from loadmanager.simulator.engine import simulate
from loadmanager.simulator.results import Run, Scores, scores_of
from loadmanager.simulator.simulation_jobs import Compared, Job, compared, results_of
from loadmanager.simulator.strategies import planner_for


@dataclass(frozen=True, slots=True)
class _Noticed:
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
        kind = _NoticedWatching if isinstance(planner.placement, Watching) else _Noticed
        planner = replace(planner, placement=kind(planner.placement, asked))
        run = simulate(job.scenario, planner, seed=job.seed)
        found[name] = run
        if not asked:
            return dict.fromkeys(names, run)
    return found


def scores_of_placements(job: Job) -> dict[str, Scores]:
    return {name: scores_of(run) for name, run in runs_of_placements(job).items()}


def with_all_placements(jobs: Iterable[Job], processes: int) -> Iterator[Compared]:
    """Yield what each shedder reached with each placement; ``jobs`` have one seed each."""
    with closing(results_of(jobs, scores_of_placements, processes=processes)) as results:
        for job, found in results:
            yield from compared(
                (replace(job, strategy=replace(job.strategy, placement=name)), scores)
                for name, scores in found.items()
            )
