"""Runs jobs one after the other in one Spark session, with a lock per job and folder."""

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from loadmanager.pipeline.failures import PipelineError, plain_cause
from loadmanager.pipeline.progress import Progress, no_progress
from loadmanager.pipeline.session import SessionSettings, spark_session

if TYPE_CHECKING:
    from loadmanager.pipeline.jobs import Work

LOCK: Final = ".{job}.lock"
"""Spark ignores names that begin with a dot."""


@contextmanager
def job_lock(out: str, job: str) -> Iterator[None]:
    """Hold the lock of ``job`` in ``out`` while the context is open.

    Object stores have no locks: at a URL that is not on this host nothing prevents a second run,
    and the scheduler has to ensure that there is none.

    Raises:
        PipelineError: another process holds the lock, or ``out`` is not writable.
    """
    folder = _local(out)
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK.format(job=job), os.O_CREAT | os.O_RDWR, 0o666)
    except OSError as error:
        raise PipelineError(f"{out}: {error.strerror}; expected a writable directory") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        text = f"{out}: another {job} is writing to it"
        raise PipelineError(f"{text}; expected one at a time") from None
    try:
        yield
    finally:
        os.close(lock)


def _local(out: str) -> Path | None:
    parts = urlsplit(out)
    if not parts.scheme:
        return Path(out)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request of a user: jobs of `JOBS` in their order, the history, and the output."""

    jobs: Sequence[str]
    out: str
    history: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def run_jobs(
    request: Request,
    settings: SessionSettings,
    print_line: Callable[[str], None],
    progress: Progress = no_progress,
) -> None:
    """Run the jobs, and print the lines of each under its name.

    If a job fails, the results of the jobs before it remain.

    Raises:
        SparkUnavailable: Spark cannot run on this host or at the master.
        PipelineError: a job cannot continue.
    """
    with spark_session(settings, " ".join(request.jobs)) as spark:
        # These need PySpark; without it `spark_session` reports what to install.
        from loadmanager.pipeline.jobs import Work  # noqa: PLC0415
        from loadmanager.pipeline.store import Store  # noqa: PLC0415

        work = Work(
            spark=spark,
            store=Store(spark, request.out),
            history=request.history,
            since=request.since,
            until=request.until,
            options=request.options,
            print_line=lambda line: print_line(f"  {line}"),
        )
        for name in request.jobs:
            print_line(name)
            started_s = time.monotonic()
            with spark_errors_named(name), progress(spark, name):
                lines = run_job(name, work)
            _print_all(lines, print_line)
            print_line(f"  done in {time.monotonic() - started_s:.1f} s")


def run_job(name: str, work: "Work") -> list[str]:
    """Run one job under its lock, and return its lines.

    Raises:
        PipelineError: another process runs it in the same place, or it cannot continue.
    """
    from loadmanager.pipeline.jobs import job  # noqa: PLC0415 - the same

    with job_lock(work.store.out, name):
        return job(name)(work)


def _print_all(lines: Iterable[str], print_line: Callable[[str], None]) -> None:
    for line in lines:
        print_line(f"  {line}")


@contextmanager
def spark_errors_named(job: str) -> Iterator[None]:
    """Convert errors that Spark raises in ``job`` to an error of one line."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with PySpark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - the same

    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        raise PipelineError(f"job {job}: {plain_cause(str(error))}") from error
