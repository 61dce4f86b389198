"""Ctrl-C ends a job at once and in peace: no stack trace, no Java that goes on."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(480)]


def javas_of(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended while we looked
        if words.partition(" ")[0].endswith("/java") and mark in words:
            found.append(words)
    return found


def test_an_interrupted_job_ends_without_a_java(small_history: Path, tmp_path: Path) -> None:
    mark = f"loadmanager.test={tmp_path}"
    job = subprocess.Popen(
        [
            *(sys.executable, "-m", "loadmanager", "pipeline", "ingest", "--driver-memory", "512m"),
            *("--history", small_history, "--out", tmp_path / "tables"),
            *("--conf", f"spark.driver.extraJavaOptions=-D{mark} -XX:TieredStopAtLevel=1"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "ingest\n"
    assert len(javas_of(f"-D{mark}")) == 1
    job.send_signal(signal.SIGINT)
    said, errors = job.communicate(timeout=300)
    assert (job.returncode, said) == (130, "")
    assert errors == "interrupted: finished jobs stay, the unfinished one left nothing\n"
    deadline_s = time.monotonic() + 60
    while javas_of(f"-D{mark}") and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert javas_of(f"-D{mark}") == []
