"""Which files of a history directory are read, and what is told of the others."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from history_lines import NOON_MS, cut, line, put, report

from loadmanager.core.history.files import hour_of
from loadmanager.core.history.schema import Stream
from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.files import StoredFile
from loadmanager.pipeline.ingest.history_files import (
    LARGEST_BYTES,
    Bounds,
    Found,
    Listing,
    find_files,
)
from loadmanager.pipeline.ingest.job import Taken, messages_of_lines

HOUR_MS = 3_600_000


class LocalListing:
    def exists(self, where: str) -> bool:
        return Path(where).exists()

    def listed(self, folder: str) -> list[StoredFile]:
        return [
            StoredFile(
                path=str(one),
                name=one.name,
                size_bytes=one.stat().st_size,
                changed_ms=one.stat().st_mtime_ns // 1_000_000,
                is_folder=one.is_dir(),
            )
            for one in sorted(Path(folder).iterdir())
        ]


LOCAL: Listing = LocalListing()


def find(top: Path, former: Found | None = None, bounds: Bounds | None = None) -> Found:
    read = {one.name: one.state for one in former.new} if former else {}
    return find_files(LOCAL, str(top), read, bounds or Bounds())


def test_files_are_found_in_the_order_of_their_hours(tmp_path: Path) -> None:
    later = put(tmp_path, [line(report(2))], first_seq=2, at_ms=NOON_MS + 24 * HOUR_MS)
    rounds = put(tmp_path, [cut(1)], stream=Stream.ROUNDS)
    first = put(tmp_path, [line(report(1))])
    found = find(tmp_path)
    assert [one.name for one in found.new] == [first, rounds, later]
    assert found.has_history


def test_what_was_read_is_known_and_what_changed_is_read_again(tmp_path: Path) -> None:
    same = put(tmp_path, [line(report(1))])
    grown = put(tmp_path, [line(report(2))], first_seq=2)
    former = find(tmp_path)
    put(tmp_path, [line(report(2)), line(report(3))], first_seq=2)
    found = find(tmp_path, former)
    assert found.known == 1
    assert [one.name for one in found.new] == found.changed == [grown]
    assert same != grown


def test_what_is_not_of_history_is_told_wherever_it_is(tmp_path: Path) -> None:
    name = put(tmp_path, [line(report(1))])
    hour = tmp_path / Path(name).parent
    (hour / "notes.txt").write_text("x")
    (hour / "reports-b1_8080-ab12-000000000001.jsonl").write_text("x")
    (hour / "reports-deeper-ab12-000000000001.jsonl.gz").mkdir()
    (hour / "_SUCCESS").write_text("")
    (hour.parent / "hour=99").mkdir()
    (tmp_path / "date=yesterday").mkdir()
    (tmp_path / "reports-b1_8080-ab12-000000000001.jsonl.gz").write_bytes(b"")
    (tmp_path / ".hidden").write_text("")
    found = find(tmp_path)
    assert [one.name for one in found.new] == [name]
    assert sorted(found.foreign) == [
        "date=2026-01-05/hour=12/notes.txt",
        "date=2026-01-05/hour=12/reports-b1_8080-ab12-000000000001.jsonl",
        "date=2026-01-05/hour=12/reports-deeper-ab12-000000000001.jsonl.gz/",
        "date=2026-01-05/hour=99/",
        "date=yesterday/",
        "reports-b1_8080-ab12-000000000001.jsonl.gz",
    ]


def test_a_file_too_large_to_be_read_is_told(tmp_path: Path) -> None:
    name = put(tmp_path, b"")
    with (tmp_path / name).open("r+b") as file:
        file.truncate(LARGEST_BYTES + 1)
    found = find(tmp_path)
    assert (found.new, found.too_large) == ([], [name])
    assert found.has_history


def test_bounds_leave_other_hours_for_later(tmp_path: Path) -> None:
    names = [
        put(tmp_path, [line(report(seq))], first_seq=seq, at_ms=NOON_MS + seq * HOUR_MS)
        for seq in range(1, 5)
    ]
    two, four = (datetime(2026, 1, 5, 12 + hours, tzinfo=UTC) for hours in (2, 4))
    some = find(tmp_path, bounds=Bounds(two, four))
    assert [one.name for one in some.new] == names[1:3]
    assert some.outside == 2
    rest = find(tmp_path, some)
    assert [one.name for one in rest.new] == [names[0], names[3]]


def test_an_hour_is_within_bounds_if_any_moment_of_it_is() -> None:
    noon = hour_of(NOON_MS)
    half_past = datetime(2026, 1, 5, 12, 30, tzinfo=UTC)
    assert Bounds(since=half_past).hold(noon)
    assert Bounds(until=half_past).hold(noon)
    assert not Bounds(since=half_past).hold(noon - 1)
    assert not Bounds(until=half_past).hold(noon + 1)
    at_one = datetime(2026, 1, 5, 13, tzinfo=UTC)
    assert not Bounds(since=at_one).hold(noon)
    assert not Bounds(until=at_one).hold(noon + 1)


def test_batches_add_up() -> None:
    both = Taken(read=6, kept=3, quarantined=2, duplicate=1) + Taken(read=1, kept=1, gone=2)
    assert list(messages_of_lines(both))[:2] == [
        "gone before they were read: 2 files",
        "lines: 7 read = 4 kept + 2 quarantined + 1 duplicate",
    ]


def test_lines_that_are_lost_on_their_way_end_the_ingest() -> None:
    with pytest.raises(PipelineError, match=r"lines: 6 read, 2 kept, 2 quarantined, 1 duplicate;"):
        Taken(read=6, kept=2, quarantined=2, duplicate=1)
