"""Runs programs in virtual time: hours of waiting pass in milliseconds, deterministically.

Nothing sleeps. When no callback is ready, the clock advances to the next timer. Two runs of the
same program take the same steps in the same order, also in different processes: tasks hash by
number and not by address, because sets of tasks are iterated in the order of their hashes.
"""

import asyncio
import signal
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from types import FrameType
from typing import Any, Final, TypeVar, TypeVarTuple

from loadmanager.ports.host import Clock
from tests.testbed.faults.violation import Invariant, Violation
from tests.testbed.faults.virtual_loop import START_S, VirtualLoop, VirtualTimeError
from tests.testbed.faults.wires import Gate

_AGAIN_S: Final = 1.0
_SHOWN_FRAMES: Final = 6


class CpuTimeUp(KeyboardInterrupt):
    """The limit of CPU time has passed.

    It is a `KeyboardInterrupt` because tasks and loops catch every other exception.
    """


@dataclass(slots=True)
class CpuTimeLimit:
    """Limit of CPU time, and the stack of the program when it was exceeded, "" before."""

    limit_s: float
    was_at: str = ""

    def _passed(self, _signal: int, frame: FrameType | None) -> None:
        self.was_at = self.was_at or "".join(traceback.format_stack(frame)[-_SHOWN_FRAMES:])
        raise CpuTimeUp(self.was_at)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raise `CpuTimeUp` in the body, repeatedly, once it exceeds the limit.

        Use it in the main thread, which alone receives signals. A timer that was set before, as
        by test runners, continues afterwards.
        """
        former = signal.signal(signal.SIGPROF, self._passed)
        left_s, every_s = signal.setitimer(signal.ITIMER_PROF, self.limit_s, _AGAIN_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.signal(signal.SIGPROF, former)
            signal.setitimer(signal.ITIMER_PROF, left_s, every_s)


Args = TypeVarTuple("Args")
T = TypeVar("T")
WALL_START_MS: Final = 1_700_000_000_000


class VirtualClock:
    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return wall_ms_at(self.monotonic_s())

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


def wall_ms_at(monotonic_s: float) -> int:
    """Return the wall-clock time, if never changed, at a time of the loop."""
    return WALL_START_MS + round((monotonic_s - START_S) * 1000)


def run(
    program: Coroutine[Any, Any, T], *, limit_s: float = 3_600.0, cpu_limit_s: float = 120.0
) -> T:
    """Run ``program`` in virtual time and return its result. Only for the main thread.

    Raises:
        VirtualTimeError: it is deadlocked, takes longer than ``limit_s``, or uses more CPU time
            than ``cpu_limit_s``, even in a single iteration of the loop.
        Violation: a callback, or a task that was not awaited, raised an exception.
    """
    loop, limit = VirtualLoop(limit_s), CpuTimeLimit(cpu_limit_s)
    try:
        with limit.watched():
            return _run(program, loop)
    except (CpuTimeUp, VirtualTimeError, Violation):
        # Interrupting a program may cause other errors; the limit is the reason.
        if not limit.was_at:
            raise
        passed_s = loop.time() - START_S
        raise VirtualTimeError(
            f"{passed_s:.0f} s did not end in {cpu_limit_s:g} s of CPU time; it was at\n"
            f"{limit.was_at}"
        ) from None


def _run(program: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    complaints: list[Mapping[str, Any]] = []
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        loop.set_exception_handler(lambda _loop, context: complaints.append(context))
        result = runner.run(program)
        ended_at_s = loop.time()
    if complaints:
        error = complaints[0].get("exception")
        seen = f"{complaints[0]['message']}: {error!r}"
        raise Violation(Invariant.NOTHING_UNHEARD, ended_at_s, "the loop", seen) from error
    return result


class SlowComputing:
    """The `Computing` port: computes at once, and returns the result after a delay."""

    def __init__(self, clock: Clock, takes_s: Callable[[], float]) -> None:
        self._clock = clock
        self._takes_s = takes_s
        self._turn = asyncio.Lock()

    async def compute(self, function: Callable[[*Args], T], *args: *Args) -> T:
        async with self._turn:
            takes_s = self._takes_s()
            found = function(*args)
            if takes_s:
                await self._clock.sleep(takes_s)
            return found


_AFTER_ALL_S: Final = 1e9
"""Later than any deadline, but finite."""


class DriftingClock:
    def __init__(self, offset_s: float = 0.0, rate: float = 1.0) -> None:
        self._offset_s = offset_s
        self.rate = rate
        self._time_s = asyncio.get_running_loop().time
        self._began_s = self._time_s()

    def monotonic_s(self) -> float:
        passed_s = self._time_s() - self._began_s
        return self._began_s + self._offset_s + passed_s * self.rate

    def loop_s(self, shown_s: float) -> float:
        """Return the time of the loop at which this clock shows ``shown_s``."""
        return self._began_s + (shown_s - self._offset_s - self._began_s) / self.rate


class ProcessClock:
    """The `Clock` of one sidecar process.

    It advances while the process is frozen, but sleeps do not end then. ``jump_ms`` is the sum of
    the changes of its wall clock.
    """

    def __init__(self, gate: Gate, rng: Random, drift_fraction: float) -> None:
        self._gate = gate
        rate = 1.0 + rng.uniform(-drift_fraction, drift_fraction) if drift_fraction else 1.0
        self._clock = DriftingClock(rate=rate)
        self._ended = False
        self.jump_ms = 0

    def end(self) -> None:
        self._ended = True

    def monotonic_s(self) -> float:
        return _AFTER_ALL_S if self._ended else self._clock.monotonic_s()

    def wall_ms(self) -> int:
        return wall_ms_at(asyncio.get_running_loop().time()) + self.jump_ms

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s / self._clock.rate)
        await self._gate.passed()
