"""Java and memory for Spark on this host, checked before Spark starts."""

import contextlib
import re
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from loadmanager.config.java import CHECK_TIMEOUT_S, NoJava, find_java
from loadmanager.core.errors import LoadManagerError

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


HOW_TO_GET_IT: Final = "install Java 17 or newer, or: pip install 'loadmanager[pipeline]'"
LEAST_JAVA: Final = 17
_DISPENSABLE: Final = (
    "--add-modules=jdk.incubator.vector",  # missing in small runtimes; other runtimes warn
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED",  # removed in Java 24, which warns
)
"""Options that Spark passes to every JVM and that the jobs do not need."""

_JVM_OVERHEAD: Final = 1.15
"""Memory of a JVM divided by the size of its heap."""

_UNITS: Final = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}

_SHIM: Final = """\
#!/bin/sh
# Removes options that this Java does not know or warns about, and that Spark does not need.
for argument do
    shift
    case "$argument" in
        {refused}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec '{java}' "$@"
"""


class SparkUnavailable(LoadManagerError):
    """Spark cannot run here. The text says what is missing and what to do."""


def java_home(folder: Path) -> Path:
    """Return the value of JAVA_HOME for Spark; a shim is created in ``folder`` if one is needed.

    Raises:
        SparkUnavailable: there is no Java of version `LEAST_JAVA` or newer.
    """
    try:
        java = find_java(HOW_TO_GET_IT, _too_old)
    except NoJava as error:
        raise SparkUnavailable(str(error)) from None
    unknown = [option for option in _DISPENSABLE if not _knows(java, option)]
    if not unknown:
        return java.resolve().parent.parent
    shim = folder / "bin" / "java"
    shim.parent.mkdir(parents=True)
    shim.write_text(_SHIM.format(refused=" | ".join(unknown), java=java.resolve()))
    shim.chmod(0o755)
    return folder


def check_memory(wanted: str, free_bytes: float | None) -> None:
    """Check that this host has the driver memory (``2g``, ``900m``) available.

    If the free memory is not known, ``free_bytes`` is None, and nothing is checked.

    Raises:
        SparkUnavailable: ``wanted`` is not a size, or more than is free.
    """
    found = re.fullmatch(r"(\d+)([kmgt])b?", wanted.strip().lower())
    if found is None:
        raise SparkUnavailable(f"driver memory {wanted!r}; expected a size such as 2g or 900m")
    bytes_wanted = int(found[1]) * _UNITS[found[2]] * _JVM_OVERHEAD
    if free_bytes is not None and bytes_wanted > free_bytes:
        raise SparkUnavailable(
            f"driver memory {wanted} needs {bytes_wanted / 2**20:.0f} MiB with Java's own, "
            f"of which {free_bytes / 2**20:.0f} MiB are free; "
            "expected less: --driver-memory, or other programs closed, or a larger limit "
            "for this container"
        )


def _too_old(java: Path) -> str | None:
    version = _version(java)
    return f"is Java {version}, Spark needs {LEAST_JAVA}" if version < LEAST_JAVA else None


def _version(java: Path) -> int:
    output = _run(java, "-version")
    found = re.search(r'version "(?:1\.)?(\d+)', output.stderr + output.stdout)
    return int(found[1]) if found else 0


def _knows(java: Path, option: str) -> bool:
    done = _run(java, option, "-version")
    return done.returncode == 0 and "WARNING" not in done.stderr


def _run(java: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - the Java that was just found
        [java, *options], capture_output=True, text=True, timeout=CHECK_TIMEOUT_S, check=False
    )
