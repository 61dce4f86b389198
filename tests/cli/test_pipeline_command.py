"""What the command refuses before it starts Spark; tests/spark runs it whole."""

import socket
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loadmanager.cli import main
from loadmanager.cli.options import parse_moment
from loadmanager.pipeline.jobs import JOBS

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def pipeline(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["pipeline", *arguments])


def refusal(*arguments: str) -> str:
    """Return the last line of what it said, which it ended with 2 for."""
    result = pipeline(*arguments)
    assert result.exit_code == 2, result.output
    return result.output.splitlines()[-1]


def test_help_names_every_job_and_imports_no_spark() -> None:
    said = pipeline("--help").output
    assert all(f"  {name:8} {what}" in said for name, what in JOBS.items())
    looked = (
        "import sys; from loadmanager.cli import main; "
        "print([name for name in ('pyspark', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", looked], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


OF_REPLAY = {"strategy": "avg+avg", "setting": "margin=0.1", "segment-h": "3"}
NOTHING_LEFT = "rollup --since 2026-11-02T01:00+01:00 --until 2026-11-02"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("rollup ingest", "ingest reads history; expected --history DIR"),
        ("ingest --history /not/there", "--history /not/there: there is no such directory"),
        (
            NOTHING_LEFT,
            "--since 2026-11-02T00:00:00Z is not before --until 2026-11-02T00:00:00Z",
        ),
        *(
            (f"rollup --{name} {value}", f"--{name} is of the job replay, which is not asked for")
            for name, value in OF_REPLAY.items()
        ),
        *(
            (f"rollup --conf {setting}", f"--conf {setting}: expected spark.KEY=VALUE")
            for setting in ("spark.x", "x=1", "=1")
        ),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, asked: str, told: str) -> None:
    assert refusal(*asked.split(), "--out", str(tmp_path)) == f"Error: {told}"


def test_a_place_that_cannot_be_written_to_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert refusal("rollup", "--out", str(file)).startswith(f"Error: --out {file}: ")
    assert (
        refusal("rollup", "--out", str(file / "in")) == f"Error: --out {file}/in: Not a directory"
    )


def test_a_combination_that_does_not_exist_is_refused_before_spark_starts(tmp_path: Path) -> None:
    replay = ("replay", "--out", str(tmp_path))
    said = refusal(*replay, "--strategy", "magic+avg")
    assert "--strategy magic+avg: shedder 'magic'; expected one of" in said
    assert "expected fraction from 0.0 to 1.0" in refusal(*replay, "--setting", "margin=9")


@pytest.mark.parametrize("gone", [["stream"], ["rollup", "--once"], ["--watermark-s", "60"]])
def test_the_removed_stream_names_what_alerts_instead(gone: list[str], tmp_path: Path) -> None:
    said = refusal(*gone, "--out", str(tmp_path))
    assert "the job stream was removed" in said
    assert "deploy/prometheus/alerts.yml" in said


def test_an_unknown_job_is_refused_with_those_there_are(tmp_path: Path) -> None:
    said = refusal("rollups", "--out", str(tmp_path))
    assert "'rollups' is not one of 'ingest', 'rollup'" in said


def test_times_are_taken_as_utc_or_as_so_long_ago() -> None:
    assert parse_moment("2026-11-01", NOW) == datetime(2026, 11, 1, tzinfo=UTC)
    assert parse_moment("2026-11-01T06:30", NOW) == datetime(2026, 11, 1, 6, 30, tzinfo=UTC)
    assert parse_moment("2026-11-01T06:30+02:00", NOW) == datetime(2026, 11, 1, 4, 30, tzinfo=UTC)
    assert parse_moment("7d", NOW) == NOW - timedelta(days=7)
    assert parse_moment("90m", NOW) == NOW - timedelta(minutes=90)


@pytest.mark.parametrize("text", ["", "yesterday", "7", "-7d", "7y"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a time such as 2026-11-01 or"):
        parse_moment(text, NOW)


def test_a_time_before_all_times_is_refused(tmp_path: Path) -> None:
    assert "--since" in refusal("rollup", "--out", str(tmp_path), "--since", "999999w")


def test_a_master_that_does_not_answer_ends_it_with_1_and_one_line(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    result = pipeline("rollup", "--out", str(tmp_path), "--master", f"spark://127.0.0.1:{port}")
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith(f"Error: no Spark master answers at spark://127.0.0.1:{port} (")
