"""An event loop whose clock jumps: hours of waiting pass in milliseconds, always alike.

Nothing in it sleeps. When no callback is ready the clock is set to the next timer, so
that time passes only as the program under test lets it, and two runs of the same
program take the same steps in the same order, also in two processes: tasks hash by
number, not by address, because a set of them is gone through in the order of hashes.
"""

import asyncio
import selectors
import time
from collections.abc import Coroutine, Generator, Mapping
from itertools import count
from typing import Any, Final, TypeVar

from loadmanager.faults.violation import Invariant, Violation

T = TypeVar("T")

START_S: Final = 1000.0
"""What the clock shows at first: not 0, which would hide what takes 0 for "never"."""

WALL_START_MS: Final = 1_700_000_000_000

_LOOK_AT_REAL_TIME_EVERY: Final = 4096


class VirtualTimeError(AssertionError):
    """The program under test waits for what cannot come any more, or never ends."""


class _NoWaiting(selectors.SelectSelector):
    """Turns each wait into a jump of the loop's clock."""

    def __init__(self, limit_s: float, real_limit_s: float) -> None:
        super().__init__()
        self.now_s = START_S
        self._limit_s = START_S + limit_s
        self._real_limit_s = real_limit_s
        self._real_deadline_s = time.monotonic() + real_limit_s
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise VirtualTimeError(f"deadlock: nothing is ready, no timer is set; {_waiting()}")
        self.now_s += max(timeout, 0.0)
        if self.now_s > self._limit_s:
            raise VirtualTimeError(f"not done after {self.now_s - START_S:g} s; {_waiting()}")
        self._turns += 1
        if self._turns % _LOOK_AT_REAL_TIME_EVERY == 0:
            self._look_at_real_time()
        return []

    def _look_at_real_time(self) -> None:
        if time.monotonic() > self._real_deadline_s:
            raise VirtualTimeError(
                f"{self.now_s - START_S:g} s took more than {self._real_limit_s:g} s to "
                f"compute; {_waiting()}"
            )


class _NumberedTask(asyncio.Task[Any]):
    """A task that hashes by its number in the loop."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs callbacks and timers as any loop does, without sockets and without waiting.

    Args:
        limit_s: how much virtual time may pass before the run counts as hanging.
        real_limit_s: how much real time it may take.
    """

    def __init__(self, limit_s: float = 36_000.0, real_limit_s: float = 3_600.0) -> None:
        self._no_waiting = _NoWaiting(limit_s, real_limit_s)
        super().__init__(self._no_waiting)
        self._numbers = count(1)
        self.set_task_factory(self._numbered)

    def time(self) -> float:
        """Return the virtual time."""
        return self._no_waiting.now_s

    def _numbered(
        self,
        loop: asyncio.AbstractEventLoop,
        program: Coroutine[Any, Any, T] | Generator[Any, None, T],
        **options: Any,
    ) -> asyncio.Task[T]:
        task = _NumberedTask(program, loop=loop, **options)
        task.number = next(self._numbers)
        return task


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
    program: Coroutine[Any, Any, T], *, limit_s: float = 3_600.0, real_limit_s: float = 3_600.0
) -> T:
    """Run ``program`` in virtual time and return its result.

    Raises:
        VirtualTimeError: it waits for ever, or for longer than ``limit_s``, or takes
            longer than ``real_limit_s`` to compute.
        Violation: a callback raised, or a task that nobody waited for.
    """
    complaints: list[Mapping[str, Any]] = []
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(limit_s, real_limit_s)) as runner:
        loop = runner.get_loop()
        loop.set_exception_handler(lambda _loop, context: complaints.append(context))
        result = runner.run(program)
        ended_at_s = loop.time()
    if complaints:
        error = complaints[0].get("exception")
        seen = f"{complaints[0]['message']}: {error!r}"
        raise Violation(Invariant.NOTHING_UNHEARD, ended_at_s, "the loop", seen) from error
    return result


def _waiting() -> str:
    try:
        names = sorted(task.get_name() for task in asyncio.all_tasks())
    except RuntimeError:
        names = []
    return f"tasks waiting: {', '.join(names) or 'none'}"
