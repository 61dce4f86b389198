import faulthandler
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from loadmanager.simulator.simulation_jobs import results_of
from tests.testbed.faults.seed_run import CPU_LIMIT_S, STEPS, SeedOutcome, run_seed

RunOne = Callable[[int], SeedOutcome]
LAST_LIMIT_S: Final = 10 * CPU_LIMIT_S
"""A process whose run could not be interrupted prints its traceback and ends after this time."""


@dataclass(slots=True)
class Totals:
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
    """Yield the outcome of each seed, in their order.

    One job runs all seeds in this process. ``run_one`` runs one seed instead of `run_seed`; more
    jobs import it by name.

    Raises:
        SimulationDied: a process died in the midst of a run.
    """
    run_one = run_one or partial(run_seed, steps=steps)
    look = run_one if jobs == 1 else partial(_run_limited, run_one)
    with closing(results_of(seeds, look, processes=jobs)) as results:
        for _, outcome in results:
            yield outcome


def _run_limited(run_one: RunOne, seed: int) -> SeedOutcome:
    faulthandler.dump_traceback_later(LAST_LIMIT_S, exit=True)
    try:
        return run_one(seed)
    finally:
        faulthandler.cancel_dump_traceback_later()
