"""Finds processes by their port: brokers on one host may share its counters."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from loadmanager.adapters.host.reading import Unreadable, read_text


@dataclass(frozen=True, slots=True)
class Listener:
    process_id: int
    name: str


def listener_on(port: int) -> Listener | None:
    """Return the process that listens on a TCP port, None if there is none or it is not visible.

    Only root can see the sockets of other users' processes.
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


SEARCH_EVERY_S: Final = 60.0
"""Interval of searches, which read the sockets of all processes and may take long."""


@dataclass(frozen=True, slots=True)
class Sharing:
    process_id: int
    brokers: int


class Neighbours:
    def __init__(self, proc_root: Path) -> None:
        self._proc_root = proc_root
        self._asked: object = None
        self._found: Sharing | None = None
        self._search_again_at_s = 0.0

    def find(
        self, process_id: int | None, port: int, others: Collection[int], now_s: float
    ) -> Sharing | None:
        """Return the brokers that share a cgroup; None if there is only one, or it is unknown.

        ``process_id`` is the broker's, if it reports it; ``others`` are the ports of the other
        brokers with the same host name.
        """
        asked = (process_id, port, frozenset(others))
        if asked != self._asked or now_s >= self._search_again_at_s:
            self._asked, self._search_again_at_s = asked, now_s + SEARCH_EVERY_S
            self._found = self._search(process_id, port, others)
        return self._found

    def _search(self, process_id: int | None, port: int, others: Collection[int]) -> Sharing | None:
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
        try:
            return read_text(self._proc_root / str(process_id) / "cgroup")
        except Unreadable:
            return None
