"""Runs many seeds, in a given number of processes, and sums up their outcomes."""

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

from tests.testbed.faults.seed_run import CPU_LIMIT_S, STEPS, SeedOutcome, run_seed
from tests.testbed.faults.violation import Invariant

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

RunOne = Callable[[int], SeedOutcome]

_LAST_LIMIT_S: Final = 10 * CPU_LIMIT_S
"""A process whose run could not be interrupted ends itself after this time."""

_spawning = multiprocessing.get_context("spawn")


def outcomes_from_processes(
    seeds: Iterable[int], *, jobs: int, run_one: RunOne, last_limit_s: float = _LAST_LIMIT_S
) -> Iterator[SeedOutcome]:
    """Yield the outcome of each seed as its run ends.

    If a process dies, or hangs for ``last_limit_s`` because not even a signal ends the run, its
    seed has failed, and another process replaces it. The process prints its traceback to
    standard error.
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
    """A process, and the seed that it runs."""

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
    """Give the next seed to a process that ended a run, or to a new one if it has died."""
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
    """Run seeds one after the other until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent ends this process.
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
    """Sums over the outcomes of several runs."""

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
    """Yield the outcome of each seed as its run ends.

    One job runs all seeds in this process. More jobs run them in as many new processes, so that
    state left behind by one run does not affect runs elsewhere.

    Args:
        seeds: the seeds to run.
        steps: the number of steps of each run.
        jobs: the number of processes.
        run_one: runs one seed instead of `run_seed`; it must be importable by name if there is
            more than one job.
    """
    run_one = run_one or partial(run_seed, steps=steps)
    if jobs == 1:
        yield from map(run_one, seeds)
        return
    yield from outcomes_from_processes(seeds, jobs=jobs, run_one=run_one)
