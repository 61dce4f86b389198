"""The limit of open files of this process, of which each connection is one."""

import resource
from collections.abc import Callable

import structlog

log = structlog.get_logger()

# Files, and connections to ZooKeeper, the broker and other sidecars, besides those of clients.
OTHER_FILES = 256


def allow_connections(
    max_connections: int,
    *,
    limits: Callable[[], tuple[int, int]] = lambda: resource.getrlimit(resource.RLIMIT_NOFILE),
    set_limits: Callable[[tuple[int, int]], None] = lambda limits: resource.setrlimit(
        resource.RLIMIT_NOFILE, limits
    ),
) -> None:
    """Raise the limit of open files until it allows this many connections.

    If it cannot be raised that far, it is raised as far as possible, and the log names the
    ``[http] max_connections`` that fits.
    """
    needed = max_connections + OTHER_FILES
    soft, hard = limits()
    if _reaches(soft, needed):
        return
    target = needed if _reaches(hard, needed) else hard
    if target > soft:
        try:
            set_limits((target, hard))
        except (OSError, ValueError) as error:
            log.warning("http.open_files.not_raised", error=str(error), limit=soft)
            target = soft
    if target < needed:
        log.warning(
            "http.open_files.too_few",
            key="[http] max_connections",
            max_connections=max_connections,
            limit=target,
            fits=max(1, target - OTHER_FILES),
        )


def _reaches(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed
