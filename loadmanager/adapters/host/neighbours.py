"""Which processes listen on this host's ports: those of other brokers share its counters."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from loadmanager.adapters.host.reading import Unreadable, read_text


@dataclass(frozen=True, slots=True)
class Listener:
    """A process that listens on a port."""

    process_id: int
    name: str


def listener_on(port: int) -> Listener | None:
    """Return the process that listens on a TCP port; None if there is none, or that is not known.

    Other users' processes are visible to root alone.
    """
    try:
        for one in psutil.net_connections(kind="tcp"):
            if (
                one.status == psutil.CONN_LISTEN
                and one.laddr
                and one.laddr.port == port
                and one.pid
            ):
                return Listener(one.pid, psutil.Process(one.pid).name())
    except (psutil.Error, OSError):
        return None
    return None


LOOK_EVERY_S: Final = 60.0
"""Looking reads the sockets of all processes, which takes long where there are many."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The broker's process, and how many brokers share what it runs in, itself included."""

    process_id: int
    brokers: int


class Neighbours:
    """Finds the processes that listen on brokers' ports, and which of them share a cgroup."""

    def __init__(self, proc_root: Path) -> None:
        self._proc_root = proc_root
        self._asked: object = None
        self._found: Sharing | None = None
        self._look_again_at_s = 0.0

    def find(
        self, process_id: int | None, port: int, others: Collection[int], now_s: float
    ) -> Sharing | None:
        """Return the brokers that share its host; None if there are none, or that cannot be known.

        Args:
            process_id: the broker's, if it reports it.
            port: where the broker listens.
            others: where the other brokers of the same host name listen.
            now_s: on a clock that never jumps.
        """
        asked = (process_id, port, frozenset(others))
        if asked != self._asked or now_s >= self._look_again_at_s:
            self._asked, self._look_again_at_s = asked, now_s + LOOK_EVERY_S
            self._found = self._look(process_id, port, others)
        return self._found

    def _look(self, process_id: int | None, port: int, others: Collection[int]) -> Sharing | None:
        own = process_id or self._listening(port)
        place = None if own is None else self._place(own)
        if own is None or place is None:
            return None
        near = {other for other in map(self._listening, others) if other is not None} - {own}
        sharing = sum(self._place(other) == place for other in near)
        return Sharing(own, 1 + sharing) if sharing else None

    def _listening(self, port: int) -> int | None:
        found = listener_on(port)
        return None if found is None else found.process_id

    def _place(self, process_id: int) -> str | None:
        """Return the cgroups of a process as one text."""
        try:
            return read_text(self._proc_root / str(process_id) / "cgroup")
        except Unreadable:
            return None
