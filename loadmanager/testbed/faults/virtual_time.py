"""An event loop whose clock jumps: hours of waiting pass in milliseconds, always alike.

Nothing in it sleeps. When no callback is ready the clock is set to the next timer, so
that time passes only as the program under test lets it, and two runs of the same
program take the same steps in the same order, also in two processes: tasks hash by
number, not by address, because a set of them is gone through in the order of hashes.
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

from loadmanager.ports import Clock
from loadmanager.testbed.faults.violation import Invariant, Violation
from loadmanager.testbed.faults.virtual_loop import START_S, VirtualLoop, VirtualTimeError
from loadmanager.testbed.faults.wires import Gate

_AGAIN_S: Final = 1.0
_SHOWN_FRAMES: Final = 6


class CpuTimeUp(KeyboardInterrupt):
    """The limit has passed.

    A `KeyboardInterrupt`, because tasks and loops keep every other exception to themselves.
    """


@dataclass(slots=True)
class CpuTimeLimit:
    """How long a program may take, and where it was when that had passed, empty before."""

    limit_s: float
    was_at: str = ""

    def _passed(self, _signal: int, frame: FrameType | None) -> None:
        self.was_at = self.was_at or "".join(traceback.format_stack(frame)[-_SHOWN_FRAMES:])
        raise CpuTimeUp(self.was_at)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raise `CpuTimeUp` in what is done meanwhile once it took too long, until it ends.

        Only for the main thread, which alone is interrupted by signals. A timer that was
        set before, as test runners do, goes on afterwards.
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
    """The `Clock` port on the running loop's time."""

    def monotonic_s(self) -> float:
        """Return the loop's time."""
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        """Return a wall clock that was never set."""
        return wall_ms_at(self.monotonic_s())

    async def sleep(self, delay_s: float) -> None:
        """Return after ``delay_s``."""
        await asyncio.sleep(delay_s)


def wall_ms_at(monotonic_s: float) -> int:
    """Return what a wall clock that was never set shows at this time of the loop."""
    return WALL_START_MS + round((monotonic_s - START_S) * 1000)


def run(
    program: Coroutine[Any, Any, T], *, limit_s: float = 3_600.0, cpu_limit_s: float = 120.0
) -> T:
    """Run ``program`` in virtual time and return its result. Only for the main thread.

    Raises:
        VirtualTimeError: it waits for ever, or for longer than ``limit_s``, or takes
            longer than ``cpu_limit_s`` to compute, be it in one turn of the loop.
        Violation: a callback raised, or a task that was not awaited.
    """
    loop, limit = VirtualLoop(limit_s), CpuTimeLimit(cpu_limit_s)
    try:
        with limit.watched():
            return _run(program, loop)
    except (CpuTimeUp, VirtualTimeError, Violation):
        # What ends a program that took too long may well find something else broken.
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
    """The `Computing` port: computes at once, and returns it only when some time has passed."""

    def __init__(self, clock: Clock, takes_s: Callable[[], float]) -> None:
        self._clock = clock
        self._takes_s = takes_s
        self._turn = asyncio.Lock()

    async def compute(self, function: Callable[[*Args], T], *args: *Args) -> T:
        """Return what ``function`` returns, or raise what it raises."""
        async with self._turn:
            takes_s = self._takes_s()
            found = function(*args)
            if takes_s:
                await self._clock.sleep(takes_s)
            return found


_AFTER_ALL_S: Final = 1e9
"""Later than any deadline, and still a number that can be computed with."""


class DriftingClock:
    """A monotonic clock that began elsewhere and runs a little faster or slower."""

    def __init__(self, offset_s: float = 0.0, rate: float = 1.0) -> None:
        self._offset_s = offset_s
        self.rate = rate
        self._time_s = asyncio.get_running_loop().time
        self._began_s = self._time_s()

    def monotonic_s(self) -> float:
        """Return the time that it shows."""
        passed_s = self._time_s() - self._began_s
        return self._began_s + self._offset_s + passed_s * self.rate

    def loop_s(self, shown_s: float) -> float:
        """Return the cluster's time at which it shows this."""
        return self._began_s + (shown_s - self._offset_s - self._began_s) / self.rate


class ProcessClock:
    """The `Clock` of one sidecar process.

    It goes on while the process is frozen, whose sleep does not end. ``jump_ms`` is how
    far its wall clock was set off.
    """

    def __init__(self, gate: Gate, rng: Random, drift_fraction: float) -> None:
        self._gate = gate
        rate = 1.0 + rng.uniform(-drift_fraction, drift_fraction) if drift_fraction else 1.0
        self._clock = DriftingClock(rate=rate)
        self._ended = False
        self.jump_ms = 0

    def end(self) -> None:
        """Let the process be dead: all that it might still have waited for is past."""
        self._ended = True

    def monotonic_s(self) -> float:
        """Return the process's time."""
        return _AFTER_ALL_S if self._ended else self._clock.monotonic_s()

    def wall_ms(self) -> int:
        """Return what the host's clock shows."""
        return wall_ms_at(asyncio.get_running_loop().time()) + self.jump_ms

    async def sleep(self, delay_s: float) -> None:
        """Return after ``delay_s``, when the process is let go on."""
        await asyncio.sleep(delay_s / self._clock.rate)
        await self._gate.passed()
