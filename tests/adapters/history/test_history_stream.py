from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from history_sinks import FailingDisk, finished, seqs_in, unfinished

from loadmanager.adapters.history.storage import recover
from loadmanager.adapters.history.stream_writer import StreamWriter
from loadmanager.config.sections import HistorySettings
from loadmanager.core.history.records import Origin, Record, record_of
from loadmanager.core.history.schema import TERM_CHANGE, Stream
from loadmanager.core.ids import BrokerId

ORIGIN = Origin("prod", BrokerId("b1:8080"), "0123456789abcdef")
HOUR_MS = 3_600_000
NOON_MS = 1_795_262_400_000


@dataclass
class Time:
    now_s: float = 0.0


def told(at_ms: int = NOON_MS, epoch: int = 1) -> Record:
    return record_of(TERM_CHANGE, at_ms, epoch=epoch, event="began")


def writer(top: Path, disk: FailingDisk, **changes: Any) -> StreamWriter:
    origin = changes.pop("origin", ORIGIN)
    clock = changes.pop("clock", Time())
    settings = HistorySettings().model_copy(update=changes)
    return StreamWriter(Stream.ROUNDS, origin, top, disk, settings, monotonic_s=lambda: clock.now_s)


def write_all(one: StreamWriter) -> None:
    one.flush()
    one.finish()


def test_a_file_is_hidden_until_it_is_whole(tmp_path: Path) -> None:
    one = writer(tmp_path, FailingDisk())
    one.add([told(), told()])
    one.flush()
    name = "rounds-b1_8080-0123456789abcdef-000000000001.jsonl.gz"
    folder = tmp_path / "date=2026-11-21" / "hour=12"
    assert unfinished(tmp_path) == [folder / f"_{name}"]
    one.finish()
    assert (finished(tmp_path), unfinished(tmp_path)) == ([folder / name], [])
    assert seqs_in(folder / name) == [1, 2]


def test_each_flush_can_be_read_while_the_file_is_open(tmp_path: Path) -> None:
    one = writer(tmp_path, FailingDisk())
    for seq in range(1, 4):
        one.add([told()])
        one.flush()
        assert seqs_in(*unfinished(tmp_path)) == list(range(1, seq + 1))


def test_a_file_ends_with_its_size_or_age_and_the_next_begins_there(tmp_path: Path) -> None:
    clock = Time()
    one = writer(tmp_path, FailingDisk(), roll_mib=150 / (1 << 20), clock=clock)
    for _ in range(4):
        one.add([told()])
        one.flush()
    by_size = [seqs_in(path) for path in finished(tmp_path)]
    assert by_size == [[1, 2], [3, 4]]
    other = writer(tmp_path / "age", FailingDisk(), roll_interval_s=60.0, clock=clock)
    other.add([told()])
    other.flush()
    clock.now_s = 60.0
    other.flush()
    assert [seqs_in(path) for path in finished(tmp_path / "age")] == [[1]]


def test_a_clock_set_back_begins_a_file_and_keeps_the_order(tmp_path: Path) -> None:
    one = writer(tmp_path, FailingDisk())
    moments = [NOON_MS, NOON_MS - HOUR_MS, NOON_MS - HOUR_MS, NOON_MS]
    one.add([told(at_ms) for at_ms in moments])
    one.flush()
    one.finish()
    found = [(path.parent.name, seqs_in(path)) for path in finished(tmp_path)]
    assert found == [("hour=12", [1]), ("hour=11", [2, 3]), ("hour=12", [4])]


def test_a_full_disk_loses_nothing_once_there_is_room(tmp_path: Path) -> None:
    disk = FailingDisk()
    one = writer(tmp_path, disk)
    one.add([told()])
    one.flush()
    disk.free_bytes = 20
    one.add([told(), told()])
    with pytest.raises(OSError, match="No space left"):
        one.flush()
    one.add([told()])
    with pytest.raises(OSError, match="No space left"):
        one.flush()
    assert one.unwritten == 3
    disk.free_bytes = 1 << 20
    write_all(one)
    assert seqs_in(*finished(tmp_path)) == [1, 2, 3, 4]


@pytest.mark.parametrize("call", ["create", "append", "sync", "publish"])
def test_what_could_not_be_done_is_done_later(tmp_path: Path, call: str) -> None:
    disk = FailingDisk(failing={call})
    one = writer(tmp_path, disk)
    one.add([told()])
    with pytest.raises(OSError, match=call):
        write_all(one)
    disk.failing.clear()
    write_all(one)
    assert seqs_in(*finished(tmp_path)) == [1]


def test_a_half_written_member_never_spoils_a_whole_file(tmp_path: Path) -> None:
    disk = FailingDisk()
    one = writer(tmp_path, disk)
    one.add([told()])
    one.flush()
    disk.free_bytes = 30
    one.add([told()])
    with pytest.raises(OSError, match="No space left"):
        one.flush()
    one.finish()
    assert seqs_in(*finished(tmp_path)) == [1]


def test_a_deleted_directory_is_made_again(tmp_path: Path) -> None:
    one = writer(tmp_path / "history", FailingDisk())
    one.add([told()])
    one.flush()
    (tmp_path / "history").rename(tmp_path / "gone")
    one.add([told()])
    write_all(one)
    assert seqs_in(*finished(tmp_path / "history")) == [2]


def left_behind(top: Path, tail: bytes) -> Path:
    """Write two lines in two members, and leave the file as a killed writer would."""
    disk = FailingDisk()
    one = writer(top, disk)
    for _ in range(2):
        one.add([told()])
        one.flush()
    (path,) = unfinished(top)
    copy = path.read_bytes()
    path.unlink()
    path.write_bytes(copy + tail)
    return path


@pytest.mark.parametrize("tail", [b"", b"\x1f\x8b", b"\x1f\x8b\x08" + b"\7" * 9, b"\0" * 999, b"x"])
def test_what_a_killed_writer_left_is_made_whole(tmp_path: Path, tail: bytes) -> None:
    left_behind(tmp_path, tail)
    (found,) = recover(FailingDisk(), tmp_path, "b1_8080")
    assert (found.cut_bytes, found.kept_bytes > 0) == (len(tail), True)
    assert seqs_in(*finished(tmp_path)) == [1, 2]
    assert unfinished(tmp_path) == []


def test_half_of_the_first_member_is_no_file(tmp_path: Path) -> None:
    path = left_behind(tmp_path, b"")
    path.write_bytes(path.read_bytes()[:30])
    (found,) = recover(FailingDisk(), tmp_path, "b1_8080")
    assert found.kept_bytes == 0
    assert (finished(tmp_path), unfinished(tmp_path)) == ([], [])


def test_the_file_of_a_living_writer_is_left_to_it(tmp_path: Path) -> None:
    one = writer(tmp_path, FailingDisk())
    one.add([told()])
    one.flush()
    assert recover(FailingDisk(), tmp_path, "b1_8080") == []
    one.add([told()])
    write_all(one)
    assert seqs_in(*finished(tmp_path)) == [1, 2]


def test_files_of_other_writers_and_foreign_files_are_left_alone(tmp_path: Path) -> None:
    path = left_behind(tmp_path, b"")
    for name in ("_notes.txt", "_rounds-x.jsonl.gz", "rounds-b1_8080-ab-000000000001.jsonl"):
        path.with_name(name).write_text("mine")
    (tmp_path / "date=2026-13-99" / "hour=99").mkdir(parents=True)
    (tmp_path / "date=2026-11-21" / "notes").write_text("mine")
    assert recover(FailingDisk(), tmp_path, "b2_8080") == []
    assert path in unfinished(tmp_path)
