"""Scores of a shedder with every placement; processes can import what looks at a job here."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace

from loadmanager.simulator.pip_364 import runs_of_placements
from loadmanager.simulator.scores import Scores, scores_of
from loadmanager.simulator.simulation_jobs import Compared, Job, compared, results_of


def scores_of_placements(job: Job) -> dict[str, Scores]:
    """Return the scores of ``job`` with each placement in place of its own, by their names."""
    return {name: scores_of(run) for name, run in runs_of_placements(job).items()}


def with_all_placements(jobs: Iterable[Job], processes: int) -> Iterator[Compared]:
    """Yield what each shedder reached with each placement; ``jobs`` have one seed each."""
    with closing(results_of(jobs, scores_of_placements, processes=processes)) as results:
        for job, found in results:
            yield from compared(
                (replace(job, strategy=replace(job.strategy, placement=name)), scores)
                for name, scores in found.items()
            )
