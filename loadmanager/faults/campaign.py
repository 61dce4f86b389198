"""Many seeds, in as many processes as asked for, and what came of all of them together."""

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from loadmanager.faults.seed_run import STEPS, SeedOutcome, run_seed

RunOne = Callable[[int], SeedOutcome]

_WAITING_PER_PROCESS = 4


@dataclass(slots=True)
class Totals:
    """What a number of runs did and found, in the order in which they ended."""

    seeds: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    happened: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    longest_unserved_s: float = 0.0
    failures: list[SeedOutcome] = field(default_factory=list)

    def add(self, outcome: SeedOutcome) -> None:
        """Add one run."""
        self.seeds += 1
        self.steps += outcome.steps
        self.virtual_s += outcome.virtual_s
        self.happened.update(outcome.happened)
        self.counted.update(outcome.counted)
        self.longest_unserved_s = max(self.longest_unserved_s, outcome.longest_unserved_s)
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
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawning) as processes:
        left = iter(seeds)
        running: set[Future[SeedOutcome]] = set()
        try:
            while True:
                some = islice(left, jobs * _WAITING_PER_PROCESS - len(running))
                running |= {processes.submit(run_one, seed) for seed in some}
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            for future in running:
                future.cancel()
