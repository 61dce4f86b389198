"""A terminal whose keys are read one by one, and which is given back in any case."""

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, Self

_QUIT: Final = frozenset(b"qQ")


class Keys:
    """Reads keys without Enter while it is entered; without a terminal there are none."""

    def __init__(self) -> None:
        self._former: list[object] | None = None

    def __enter__(self) -> Self:
        """Have the terminal pass on each key at once, and not show it."""
        if sys.stdin is not None and sys.stdin.isatty():
            import termios
            import tty

            self._former = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(self, *_reason: object) -> None:
        """Give the terminal back as it was."""
        if self._former is not None:
            import termios

            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._former)  # type: ignore[arg-type] # what it returned
            self._former = None

    def quits_within(self, seconds: float) -> bool:
        """Return whether q is pressed within these seconds; other keys are ignored."""
        until_s = time.monotonic() + seconds
        while True:
            left_s = max(0.0, until_s - time.monotonic())
            if self._former is None:
                time.sleep(left_s)
                return False
            ready, _, _ = select.select([sys.stdin], [], [], left_s)
            if not ready:
                return False
            keys = os.read(sys.stdin.fileno(), 64)
            if not keys or _QUIT & set(keys):  # nothing to read: the terminal is gone
                return True


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP end what is inside as exceptions do, so that it cleans up.

    SIGINT as well where the parent had it ignored, as scripts have for what they start beside
    themselves: on a terminal Ctrl-C has to end it.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    handlers = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: end,
        signal.SIGHUP: end,
    }
    former = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
