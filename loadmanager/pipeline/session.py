"""Spark sessions with the settings that all jobs share."""

import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from loadmanager.config.java import CHECK_TIMEOUT_S, NoJava, find_java
from loadmanager.core.errors import LoadManagerError
from loadmanager.pipeline.failures import plain_cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    raise SparkUnavailable(
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
    output = _run(java, "-version")
    found = re.search(r'version "(?:1\.)?(\d+)', output.stderr + output.stdout)
    version = int(found[1]) if found else 0
    return f"is Java {version}, Spark needs {LEAST_JAVA}" if version < LEAST_JAVA else None


def _knows(java: Path, option: str) -> bool:
    done = _run(java, option, "-version")
    return done.returncode == 0 and "WARNING" not in done.stderr


def _run(java: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - the Java that was just found
        [java, *options], capture_output=True, text=True, timeout=CHECK_TIMEOUT_S, check=False
    )


LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
LOOPBACK: Final = "127.0.0.1"
_JAVA: Final = "spark.driver.extraJavaOptions"
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w*GC\b")
_QUICK_COLLECTOR: Final = "-XX:+UseParallelGC"
"""Throughput matters, not pauses: this collector takes less CPU than a concurrent one."""

_JAVA_VARIABLES: Final = (
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "SPARK_SUBMIT_OPTS",
)
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_PARTITIONS_PER_CORE: Final = 4
"""The default of 200 is for large clusters; elsewhere most time would go into starting tasks."""

_FEWEST_PARTITIONS: Final = 8
_SETTLED_S: Final = 1.0
"""Executors register one after the other; after so long without a new one, all have."""

_NEEDED: Final = ("pyspark", "pyarrow", "pandas")
_ALWAYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.parquet.compression.codec": "zstd",
        # The default format has no statistics, and some other readers misinterpret it.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # A task writes to few partitions at a time and need not sort its rows by them.
        "spark.sql.maxConcurrentOutputFileWriters": "32",
        # Spark's own bar would overwrite ours.
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.enabled": "false",
        # Otherwise PySpark calls Java several times for every expression.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Where jobs run. ``more`` are settings of Spark; they override ours.

    ``driver_memory`` is a size such as ``2g``; with a ``local`` master it is the only memory of
    Spark. It is checked against ``free_bytes``, the free memory of this host or container (None:
    not known). A standalone cluster has to start an executor within ``executor_wait_s``.
    """

    master: str = "local[*]"
    driver_memory: str = "2g"
    free_bytes: float | None = None
    executor_wait_s: float = 120.0
    more: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def local(self) -> bool:
        """Whether driver and tasks run in one JVM on this host."""
        return self.master.startswith("local")


@contextlib.contextmanager
def spark_session(settings: SessionSettings, name: str) -> Iterator["SparkSession"]:
    """Yield a session for the job ``name``, and stop it at the end.

    Raises:
        SparkUnavailable: PySpark, Java or memory is missing, the master cannot be reached, or
            it starts no executor.
    """
    check_memory(settings.driver_memory, settings.free_bytes)
    for package in _NEEDED:
        if importlib.util.find_spec(package) is None:
            text = f"the pipeline needs its extra ({package} is missing)"
            raise SparkUnavailable(f"{text}: pip install 'loadmanager[pipeline]'")
    address = _own_address(settings)
    with tempfile.TemporaryDirectory(prefix="loadmanager-java-") as folder:
        session = _started(settings, name, java_home(Path(folder) / "home"), address)
        with _stopped(session):
            if is_standalone(settings.master):
                _wait_for_executors(session, settings)
                if _PARTITIONS not in settings.more:
                    cores = session.sparkContext.defaultParallelism
                    session.conf.set(_PARTITIONS, _partitions(cores))
            yield session


@contextlib.contextmanager
def _stopped(session: "SparkSession") -> Iterator[None]:
    """Stop the session at the end; it is no error if the JVM has ended already."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - optional, and slow to import

    gone = contextlib.suppress(Py4JError, OSError)
    try:
        yield
    except BaseException:
        # After a failure, log messages about cancelled tasks would add nothing.
        with gone:
            session.sparkContext.setLogLevel("OFF")
        raise
    finally:
        with gone:
            session.stop()


def _own_address(settings: SessionSettings) -> str | None:
    """Return the address that Spark has to bind to; None lets Spark choose.

    Without an address it binds to the one that the host's name resolves to, and logs a warning
    if the name does not resolve.
    """
    chosen = os.environ.get("SPARK_LOCAL_IP")
    if settings.local:
        return chosen or LOOPBACK
    if is_standalone(settings.master):
        seen = own_address(settings.master)
        return chosen or seen
    return chosen


def _started(
    settings: SessionSettings, name: str, home: Path, address: str | None
) -> "SparkSession":
    from py4j.protocol import Py4JError  # noqa: PLC0415 - optional, and slow to import
    from pyspark.errors import PySparkException  # noqa: PLC0415 - the same
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the same

    builder = SparkSession.builder.master(settings.master).appName(f"loadmanager {name}")
    for key, value in conf_of(settings, address).items():
        builder = builder.config(key, value)
    variables = {
        "JAVA_HOME": str(home),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }
    if address is not None:
        variables["SPARK_LOCAL_IP"] = address
    try:
        with _environment(variables), _own_interrupts():
            return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        text = f"Spark does not start at {settings.master}: {plain_cause(str(error))}"
        raise SparkUnavailable(text) from error


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Restore the handler of SIGINT: that of PySpark calls Java during another call to Java."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while Spark starts, and restore the former ones."""
    before = {key: os.environ.get(key) for key in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


@contextlib.contextmanager
def settings_of(spark: "SparkSession", wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            if former is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, former)


def conf_of(settings: SessionSettings, address: str | None = None) -> dict[str, str]:
    """Return Spark's settings for a session that binds to ``address``."""
    conf = {
        **_ALWAYS,
        "spark.driver.memory": settings.driver_memory,
    }
    if settings.local:
        conf[_PARTITIONS] = str(_partitions(len(os.sched_getaffinity(0))))
    if address is not None:
        conf["spark.driver.bindAddress"] = conf["spark.driver.host"] = address
    return conf | dict(settings.more) | {_JAVA: " ".join(_java_options(settings))}


def _java_options(settings: SessionSettings) -> Iterator[str]:
    """Yield our options and the requested ones; a JVM does not start with two collectors."""
    asked = settings.more.get(_JAVA, "")
    elsewhere = (settings.more.get("spark.driver.defaultJavaOptions", ""),)
    variables = (os.environ.get(name, "") for name in _JAVA_VARIABLES)
    yield f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
    if settings.local and not any(map(_COLLECTOR.search, (asked, *elsewhere, *variables))):
        yield _QUICK_COLLECTOR
    if asked:
        yield asked


def _partitions(cores: int) -> int:
    return max(_FEWEST_PARTITIONS, _PARTITIONS_PER_CORE * cores)


def _wait_for_executors(session: "SparkSession", settings: SessionSettings) -> None:
    """Wait until the number of executors is above 0 and stable: jobs are partitioned by it.

    Spark itself would wait for ever without a message.
    """
    context: Any = session.sparkContext._jsc.sc()  # noqa: SLF001 - there is no public way
    if session.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return  # executors are requested once there are tasks
    began_s = changed_s = time.monotonic()
    seen = 0
    while not seen or time.monotonic() - changed_s < _SETTLED_S:
        # The driver is counted as well.
        found = int(context.getExecutorMemoryStatus().size()) - 1
        if found != seen:
            seen, changed_s = found, time.monotonic()
        if not seen and time.monotonic() - began_s > settings.executor_wait_s:
            raise SparkUnavailable(
                f"{settings.master} gave no executor within {settings.executor_wait_s:g} s; "
                "expected a worker with a free core and the memory of one executor "
                "(--conf spark.executor.memory=1g, spark.cores.max=4), or other applications ended"
            )
        time.sleep(0.2)
