"""That each job runs once at a time in a folder: two would mix what they write."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from loadmanager.pipeline.contract import PipelineError

LOCK: Final = ".{job}.lock"
"""Spark passes over names that begin with a dot."""


@contextmanager
def alone(out: str, job: str) -> Iterator[None]:
    """Hold ``out`` for one ``job``, run by this process, as long as it lives.

    Object stores have no locks: at a URL that is not of this host no other job is kept out, and
    the scheduler that runs the job has to ensure it.

    Raises:
        PipelineError: another process holds it, or it is not writable.
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
        told = f"{out}: another {job} is writing to it"
        raise PipelineError(f"{told}; expected one at a time") from None
    try:
        yield
    finally:
        os.close(lock)


def _local(out: str) -> Path | None:
    parts = urlsplit(out)
    if not parts.scheme:
        return Path(out)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
