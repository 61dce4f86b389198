"""Who listens on a port of this host, as far as this user may know."""

from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Listener:
    """A process that listens on a port."""

    process_id: int
    name: str


def listener_on(port: int) -> Listener | None:
    """Return the process that listens on a TCP port; None if there is none, or that is not known.

    Of other users' processes only root is told.
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
