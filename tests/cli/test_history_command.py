import gzip
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loadmanager.adapters.history.sink import recorded
from loadmanager.cli import main
from loadmanager.core.history.records import Origin, record_of
from loadmanager.core.history.schema import LOST_ROUNDS, TERM_CHANGE, Stream
from loadmanager.core.ids import BrokerId

NOON_MS = 1_795_262_400_000
ORIGIN = Origin("prod", BrokerId("b1:8080"), "0123456789abcdef")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["history", *arguments])


@pytest.fixture(name="directory")
def directory_fixture(tmp_path: Path) -> Path:
    lost = record_of(LOST_ROUNDS, NOON_MS, records=7, why="unfit", first_at_ms=1, last_at_ms=1)
    records = [
        record_of(TERM_CHANGE, NOON_MS, epoch=3, event="began"),
        lost,
        record_of(TERM_CHANGE, NOON_MS, epoch=3, event="ended"),
    ]
    with recorded(tmp_path, ORIGIN) as history:
        history.offer(Stream.ROUNDS, NOON_MS, lambda: records)
    return tmp_path


def only_file(directory: Path) -> Path:
    (path,) = directory.glob("date=*/hour=*/*.gz")
    return path


def test_a_good_directory_is_counted(directory: Path) -> None:
    done = run("check", "--json", str(directory))
    assert done.exit_code == 0
    assert json.loads(done.output) == {
        "files": 1,
        "unfinished": 0,
        "lines": 3,
        "kinds": {"lost_rounds": 1, "term": 2},
        "given_up": 7,
        "missing": 0,
        "repeated": 0,
        "faults": [],
    }
    told = run("check", str(directory))
    assert (told.exit_code, "7 records given up" in told.output) == (0, True)


def test_bad_lines_are_told_with_their_places_and_gaps_counted(directory: Path) -> None:
    path = only_file(directory)
    first, second, third = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    spoilt = second.replace(b'"records":7', b'"records":-7')
    path.write_bytes(gzip.compress(first + spoilt + third + third + b"gossip\n"))
    done = run("check", "--json", str(directory))
    assert done.exit_code == 1
    found = json.loads(done.output)
    assert (found["lines"], found["missing"], found["repeated"]) == (3, 1, 1)
    assert [fault.partition(": ")[0] for fault in found["faults"]] == [f"{path}:2", f"{path}:5"]
    assert "records = -7; expected a whole number from 0 to 2^60" in found["faults"][0]


@pytest.mark.parametrize(
    ("cut", "told"), [(30, "after line"), (-5, "after line"), (None, "Not a gzipped file")]
)
def test_a_truncated_file_or_no_gzip_is_told(directory: Path, cut: int | None, told: str) -> None:
    path = only_file(directory)
    path.write_bytes(b"mine" if cut is None else path.read_bytes()[:cut])
    done = run("check", str(directory))
    assert done.exit_code == 1
    assert re.search(f"{re.escape(str(path))}: .*{told}", done.output)


def test_what_a_killed_writer_left_is_finished_by_hand(directory: Path) -> None:
    path = only_file(directory)
    path.rename(path.with_name(f"_{path.name}"))
    assert "0 files, and 1 that are being written" in run("check", str(directory)).output
    assert run("finish", str(directory)).output == "1 files finished\n"
    assert only_file(directory) == path
