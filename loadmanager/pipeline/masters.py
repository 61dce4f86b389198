"""The masters of a standalone Spark cluster: addresses, and whether one can be reached."""

import contextlib
import re
import socket
from collections.abc import Sequence
from typing import Final

from loadmanager.pipeline.runtime import SparkUnavailable

ANSWERS_WITHIN_S: Final = 5.0
_ADDRESS: Final = re.compile(r"([^:,/\s]+|\[[0-9a-fA-F:]+\]):(\d{1,5})")
_SCHEME: Final = "spark://"


def is_standalone(master: str) -> bool:
    """Return whether ``master`` is ``spark://HOST:PORT``, or several of them."""
    return master.startswith(_SCHEME)


def addresses(master: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of ``spark://HOST:PORT[,HOST:PORT...]``.

    Raises:
        SparkUnavailable: ``master`` has another form.
    """
    found = [_ADDRESS.fullmatch(one) for one in master.removeprefix(_SCHEME).split(",")]
    known = [(one[1].strip("[]"), int(one[2])) for one in found if one is not None]
    if len(known) < len(found):
        raise SparkUnavailable(f"master {master!r}; expected spark://HOST:PORT[,HOST:PORT...]")
    return known


def own_address(master: str) -> str:
    """Return the local address of a connection to the first master that answers.

    Spark itself would try for a minute, and would announce the address that this host's name
    resolves to.

    Raises:
        SparkUnavailable: no master answers.
    """
    failures = []
    for host, port in addresses(master):
        try:
            with contextlib.closing(
                socket.create_connection((host, port), timeout=ANSWERS_WITHIN_S)
            ) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            failures.append(f"{host}:{port}: {error.strerror or error}")
    raise SparkUnavailable(_summary(master, failures))


def _summary(master: str, failures: Sequence[str]) -> str:
    return (
        f"no Spark master answers at {master} ({'; '.join(failures)}); "
        "expected one that runs there, and a network that lets this host reach it"
    )
