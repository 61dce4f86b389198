"""An event loop whose clock jumps: hours of waiting pass in milliseconds, always alike.

Nothing in it sleeps. When no callback is ready the clock is set to the next timer, so
that time passes only as the program under test lets it, and two runs of the same
program take the same steps in the same order, also in two processes: tasks hash by
number, not by address, because a set of them is gone through in the order of hashes.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar

from loadmanager.testbed.faults.cpu_time import CpuTimeLimit, CpuTimeUp
from loadmanager.testbed.faults.violation import Invariant, Violation
from loadmanager.testbed.faults.virtual_loop import START_S, VirtualLoop, VirtualTimeError

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
