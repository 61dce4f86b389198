"""Each job once at a time: the lock ends with the process that holds it."""

import subprocess
import sys
from pathlib import Path

import pytest

from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.running import job_lock

HOLDER = """
import sys
from loadmanager.pipeline.running import job_lock
with job_lock(sys.argv[1], "rollup"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_held_by_one_process_until_it_is_killed(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    command = [sys.executable, "-c", HOLDER, out]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(PipelineError, match="out: another rollup is writing to it"),
            job_lock(out, "rollup"),
        ):
            pass
        with job_lock(out, "moves"):
            assert not (tmp_path / "out" / ".ingest.lock").exists()
        holder.kill()
    with job_lock(out, "rollup"):
        assert (tmp_path / "out").is_dir()


def test_a_path_and_its_url_are_the_same_folder_and_elsewhere_nothing_is_held(
    tmp_path: Path,
) -> None:
    url = f"file://{tmp_path}/a%20b"
    with job_lock(url, "x"), pytest.raises(PipelineError), job_lock(str(tmp_path / "a b"), "x"):
        pass
    with job_lock("s3a://bucket/tables", "x"), job_lock("s3a://bucket/tables", "x"):
        pass
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "out")
    with pytest.raises(PipelineError, match="expected a writable directory"), job_lock(out, "x"):
        pass
