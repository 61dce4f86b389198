"""The ordered events of one run: shown after a failure, and compared by a digest."""

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any, Final

import structlog

_KEPT_LINES: Final = 400
Entry = Mapping[str, Any]
PROCESS: Final[ContextVar[str]] = ContextVar("process", default="-")
"""The simulated process to which the running task belongs."""


class Trace:
    """Every step, change and log event of a run, one line each.

    Two runs with equal digests are equal. Only the last lines are kept.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._closed = False
        self.length = 0

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    @property
    def last_lines(self) -> tuple[str, ...]:
        return tuple(self._lines)

    def add(self, kind: str, text: str) -> None:
        if self._closed:
            return
        line = f"{asyncio.get_running_loop().time():.6f} {kind} {text}"
        self._digest.update(line.encode())
        self._digest.update(b"\n")
        self._lines.append(line)
        self.length += 1

    def close(self) -> None:
        """Ignore further lines: the shutdown is not part of the run."""
        self._closed = True

    def add_entry(self, entry: Entry) -> None:
        fields = " ".join(
            f"{key}={value}" for key, value in sorted(entry.items()) if key not in _NAMED
        )
        self.add(entry["level"], f"{PROCESS.get()} {entry['event']} {fields}")


_NAMED: Final = frozenset({"event", "level", "at_s"})


def listen(heard: Callable[[Entry], None]) -> None:
    """Pass every log event of level info or above to ``heard``, and to no log.

    `structlog.reset_defaults` ends it.
    """

    def keep(_logger: object, level: str, event: MutableMapping[str, Any]) -> Entry:
        heard({**event, "level": level, "at_s": asyncio.get_running_loop().time()})
        raise structlog.DropEvent

    structlog.configure(
        processors=[keep],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
