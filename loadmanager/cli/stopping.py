"""How commands are stopped, and how they end when somebody did."""

import signal
import threading
from types import FrameType
from typing import Final

import click

INTERRUPTED: Final = 130
"""What a shell shows of a command that Ctrl-C ended."""


def stopped_by_signals() -> threading.Event:
    """Return what SIGINT and SIGTERM set."""
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    return stopping


def interrupted() -> click.exceptions.Exit:
    """Return what ends a command that caught Ctrl-C with `INTERRUPTED`.

    Python kills itself in the end if an interrupt came while a text was executed (as a dataclass
    that is defined does, in an import), though it was caught, unless another text is executed.
    """
    exec("")  # noqa: S102 - see above
    return click.exceptions.Exit(INTERRUPTED)
