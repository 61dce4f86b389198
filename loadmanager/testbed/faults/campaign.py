"""Many seeds, in as many processes as asked for, and what came of all of them together."""

import faulthandler
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Final

from loadmanager.testbed.faults.seed_run import CPU_LIMIT_S, STEPS, SeedOutcome, run_seed
from loadmanager.testbed.faults.violation import Invariant

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

RunOne = Callable[[int], SeedOutcome]

_LAST_LIMIT_S: Final = 10 * CPU_LIMIT_S
"""After this a process ends itself that a run could not be ended in."""

_spawning = multiprocessing.get_context("spawn")


def outcomes_from_processes(
    seeds: Iterable[int], *, jobs: int, run_one: RunOne, last_limit_s: float = _LAST_LIMIT_S
) -> Iterator[SeedOutcome]:
    """Yield the outcome of each seed as its run ends.

    A process that dies of a seed, or hangs in it for ``last_limit_s``, where not even a
    signal ends the run, is a failure of that seed, and another takes its place. It says
    itself on standard error where it was.
    """
    left = iter(seeds)
    busy: dict[Connection, _Worker] = {}
    try:
        for seed in islice(left, jobs):
            worker = _start(run_one, last_limit_s)
            worker.give(seed)
            busy[worker.line] = worker
        while busy:
            ready = wait(busy)
            for worker in [worker for line, worker in busy.items() if line in ready]:
                yield worker.outcome()
                del busy[worker.line]
                going_on = _with_next(worker, next(left, None), run_one, last_limit_s)
                if going_on:
                    busy[going_on.line] = going_on
    finally:
        for worker in busy.values():
            worker.end()


@dataclass(slots=True)
class _Worker:
    """One process, and the seed that it runs."""

    process: "SpawnProcess"
    line: "Connection[int, SeedOutcome]"
    seed: int = 0
    began_s: float = 0.0

    def give(self, seed: int) -> None:
        self.seed = seed
        self.began_s = time.monotonic()
        self.line.send(seed)

    def outcome(self) -> SeedOutcome:
        try:
            return self.line.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
        return SeedOutcome(
            seed=self.seed,
            steps=0,
            digest="",
            virtual_s=0.0,
            real_s=time.monotonic() - self.began_s,
            violation=f"the process ended with {self.process.exitcode} in the midst of the run",
            invariant=Invariant.NOTHING_UNHEARD.value,
        )

    def end(self) -> None:
        self.line.close()
        self.process.kill()
        self.process.join()
        self.process.close()


def _with_next(
    worker: _Worker, seed: int | None, run_one: RunOne, last_limit_s: float
) -> _Worker | None:
    """Give the next seed to a process that has ended one, or to another if it is no more."""
    alive = worker.process.is_alive()
    if seed is None or not alive:
        worker.end()
    if seed is None:
        return None
    going_on = worker if alive else _start(run_one, last_limit_s)
    going_on.give(seed)
    return going_on


def _start(run_one: RunOne, last_limit_s: float) -> _Worker:
    line, its_line = _spawning.Pipe()
    process = _spawning.Process(target=_run_seeds, args=(its_line, run_one, last_limit_s))
    process.daemon = True
    process.start()
    its_line.close()
    return _Worker(process, line)


def _run_seeds(line: "Connection[SeedOutcome, int]", run_one: RunOne, last_limit_s: float) -> None:
    """Run one seed after the other, until no more are given."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Its parent ends this process.
    while True:
        try:
            seed = line.recv()
        except EOFError:
            return
        faulthandler.dump_traceback_later(last_limit_s, exit=True)
        outcome = run_one(seed)
        faulthandler.cancel_dump_traceback_later()
        line.send(outcome)


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
