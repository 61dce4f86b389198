"""Notices whether a placement was asked at all: if not, any other does as well."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.ids import BundleId
from loadmanager.core.memory import Memory
from loadmanager.core.placement import Placement, Ranking, Watching
from loadmanager.simulator.comparing import Job
from loadmanager.simulator.engine import simulate
from loadmanager.simulator.run import Run
from loadmanager.simulator.strategies import placements_of, planner_for


def runs_of_placements(job: Job) -> Mapping[str, Run]:
    """Return the run of ``job`` with each placement in place of its own, by their names.

    A shedder that names its targets, or moves nothing, may never ask its placement: then
    the run with the first one is that of all, and only the first is simulated.
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
    """A placement that notes for which bundles it was asked."""

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
