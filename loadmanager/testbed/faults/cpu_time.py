"""A limit of CPU time that also ends a program which never gives its turn back.

It is not one of wall clock time: a run on a busy machine waits for the processor, and hangs no
more than any other.
"""

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final

_AGAIN_S: Final = 1.0
_TOLD_FRAMES: Final = 6


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
        self.was_at = self.was_at or "".join(traceback.format_stack(frame)[-_TOLD_FRAMES:])
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
