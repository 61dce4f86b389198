"""An event loop in virtual time, optimized because it dominates the cost of a simulated second.

It runs callbacks, timers and tasks as the loops of asyncio do, without selector, sockets and
threads. Timers that are due at the same time run in the order in which they were set, and none
runs before its time.
"""

import asyncio
import contextvars
import heapq
import math
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from itertools import count
from typing import Any, Final, TypeVar, TypeVarTuple

T = TypeVar("T")
Args = TypeVarTuple("Args")
START_S: Final = 1000.0
"""The initial time; not 0, which would hide code that uses 0 for "never"."""

_TURN_S: Final = 1e-9
"""Duration of an iteration. If the clock stood still, a task could wait forever for a time so
near that adding the difference to the clock has no effect."""


class VirtualTimeError(AssertionError):
    """The program under test is deadlocked, or does not end in time."""


class _Call(asyncio.TimerHandle):
    __slots__ = ("args", "callback", "context", "dead", "when_s")

    def __init__(
        self,
        when_s: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        self.when_s = when_s
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = contextvars.copy_context() if context is None else context
        self.dead = False

    def cancel(self) -> None:
        self.dead = True
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self.dead

    def when(self) -> float:
        return self.when_s

    def __repr__(self) -> str:
        return f"<call of {self.callback} at {self.when_s:g} s>"


class _NumberedTask(asyncio.Task[Any]):
    """A task whose hash is its number in the loop, so that sets of tasks have a stable order."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks and timers without waiting.

    Args:
        limit_s: the virtual time after which the program counts as hanging.
    """

    _ready: deque[_Call]
    _stopping: bool

    def __init__(self, limit_s: float = 36_000.0) -> None:
        super().__init__()
        self._now_s = START_S
        self._limit_s = START_S + limit_s
        self._timers: list[tuple[float, int, _Call]] = []
        self._timer_numbers = count()
        self._task_numbers = count(1)
        self.set_task_factory(self._numbered)

    def time(self) -> float:
        return self._now_s

    def call_soon(
        self,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        call = _Call(0.0, callback, args, context)
        self._ready.append(call)
        return call

    def call_at(
        self,
        when: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run ``callback`` at the time ``when``; infinity means never; raises ValueError."""
        if not when > -math.inf:
            raise ValueError(f"a timer at {when} s: expected a time")
        call = _Call(when, callback, args, context)
        heapq.heappush(self._timers, (when, next(self._timer_numbers), call))
        return call

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready and not self._stopping:
            self._jump()
        while timers and timers[0][0] <= self._now_s:
            ready.append(heapq.heappop(timers)[2])
        self._now_s += _TURN_S
        for _ in range(len(ready)):
            call = ready.popleft()
            if call.callback is not None:
                try:
                    call.context.run(call.callback, *call.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - reported as in any loop
                    self.call_exception_handler({"message": f"{call!r} failed", "exception": error})

    def _jump(self) -> None:
        timers = self._timers
        while timers and timers[0][2].dead:
            heapq.heappop(timers)
        if not timers or timers[0][0] == math.inf:
            raise VirtualTimeError(f"deadlock: nothing is ready, no timer is set; {waiting()}")
        self._now_s = max(self._now_s, timers[0][0])
        if self._now_s > self._limit_s:
            raise VirtualTimeError(f"not done after {self._now_s - START_S:g} s; {waiting()}")

    def _write_to_self(self) -> None:
        """Do nothing: the loop never sleeps."""

    def _numbered(
        self,
        loop: asyncio.AbstractEventLoop,
        program: Coroutine[Any, Any, T] | Generator[Any, None, T],
        **options: Any,
    ) -> asyncio.Task[T]:
        task = _NumberedTask(program, loop=loop, **options)
        task.number = next(self._task_numbers)
        return task


def waiting() -> str:
    """Return the names of all tasks, for error messages."""
    try:
        names = sorted(task.get_name() for task in asyncio.all_tasks())
    except RuntimeError:
        names = []
    return f"tasks waiting: {', '.join(names) or 'none'}"
