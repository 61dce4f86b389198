"""A simulation's scores together with its picture, for a report: one job of many."""

from dataclasses import dataclass

from loadmanager.simulator.comparing import Job, run_job
from loadmanager.simulator.picture import Picture, picture_of
from loadmanager.simulator.scores import Scores, scores_of


@dataclass(frozen=True, slots=True)
class Seen:
    """What a report needs of a run. Only the run of the first seed has a picture."""

    scores: Scores
    picture: Picture | None


def see(job: Job, first_seed: int | None = None) -> Seen:
    """Return scores and picture of ``job``; ``first_seed`` is the one `jobs_of` was given.

    ``partial(see, first_seed=...)`` is a look for `results_of`.
    """
    run = run_job(job)
    first = job.scenario.seed if first_seed is None else first_seed
    return Seen(scores_of(run), picture_of(run) if job.seed == first else None)
