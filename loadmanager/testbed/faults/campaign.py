"""Many seeds, in as many processes as asked for, and what came of all of them together."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from loadmanager.testbed.faults.seed_run import STEPS, SeedOutcome, run_seed
from loadmanager.testbed.faults.workers import RunOne, outcomes_from_processes


@dataclass(slots=True)
class Totals:
    """What a number of runs did and found, in the order in which they ended."""

    seeds: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    happened: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    longest_unserved_s: float = 0.0
    longest_unled_s: float = 0.0
    longest_asked_s: float = 0.0
    failures: list[SeedOutcome] = field(default_factory=list)

    def add(self, outcome: SeedOutcome) -> None:
        """Add one run."""
        self.seeds += 1
        self.steps += outcome.steps
        self.virtual_s += outcome.virtual_s
        self.happened.update(outcome.happened)
        self.counted.update(outcome.counted)
        self.longest_unserved_s = max(self.longest_unserved_s, outcome.longest_unserved_s)
        self.longest_unled_s = max(self.longest_unled_s, outcome.longest_unled_s)
        self.longest_asked_s = max(self.longest_asked_s, outcome.longest_asked_s)
        if outcome.violation:
            self.failures.append(outcome)


def outcomes(
    seeds: Sequence[int], *, steps: int = STEPS, jobs: int = 1, run_one: RunOne | None = None
) -> Iterator[SeedOutcome]:
    """Yield the outcome of each seed as its run ends.

    With one job they run here, one after the other; with more, in so many new processes,
    which share nothing: what a run leaves behind in its process changes no other.

    Args:
        seeds: which.
        steps: of each run.
        jobs: processes.
        run_one: another run of one seed than `run_seed`; has to be importable by name
            for more than one job.
    """
    run_one = run_one or partial(run_seed, steps=steps)
    if jobs == 1:
        yield from map(run_one, seeds)
        return
    yield from outcomes_from_processes(seeds, jobs=jobs, run_one=run_one)
