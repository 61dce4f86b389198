"""How commands that run until somebody stops them are stopped."""

import signal
import threading
from types import FrameType


def stopped_by_signals() -> threading.Event:
    """Return what SIGINT and SIGTERM set."""
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    return stopping
