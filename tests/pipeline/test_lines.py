"""What is a line of history is decided by the strict reader, wherever lines are read."""

import gzip
import io
import json
import os
from collections.abc import Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from history_lines import BUNDLES, NOON_MS, SPOILT, UNUSUAL, Spoil, cut, line, packed, put, report

from loadmanager.core.errors import MalformedContent
from loadmanager.core.history.files import hour_of
from loadmanager.core.history.reading import read_line
from loadmanager.core.history.schema import KINDS, Stream
from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.files import StoredFile
from loadmanager.pipeline.ingest import job, lines
from loadmanager.pipeline.ingest.history_files import (
    LARGEST_BYTES,
    Bounds,
    Found,
    Listing,
    find_files,
)
from loadmanager.pipeline.ingest.job import SEPARATOR, Taken, messages_of_lines, parquet_files_of
from loadmanager.pipeline.ingest.lines import SHOWN_CHARACTERS, Line, lines_of, parts_of
from loadmanager.pipeline.tables import BUNDLE_LOAD

FILE = "date=2026-01-05/hour=12/reports-b1_8080-ab12-000000000001.jsonl.gz"


def read(*contents: bytes) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pydict(
        {"path": [f"file:/some/where/{FILE}"] * len(contents), "content": list(contents)}
    )
    return [
        {"part": part, **row} for part, rows in parts_of(iter([batch])) for row in rows.to_pylist()
    ]


def rows_of(part: str, *contents: bytes) -> list[dict[str, Any]]:
    return [row for row in read(*contents) if row["part"] == part]


def verdict(content: bytes) -> str | None:
    try:
        read_line("", content)
    except MalformedContent as error:
        return str(error).removeprefix(": ")
    return None


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_a_spoilt_line_is_refused_in_the_words_of_the_strict_reader(spoil: Spoil) -> None:
    spoilt = spoil(report(2))
    rows = read(packed([line(report(1)), spoilt, line(report(3))]))
    told = {row["line"]: row["content"] for row in rows if row["part"] == "lines"}
    assert verdict(spoilt) is not None
    assert told[2]["fault"] == verdict(spoilt)
    assert told[2]["text"] == spoilt.decode(errors="replace")[:SHOWN_CHARACTERS]
    assert told[1]["fault"] is None
    assert told[3]["fault"] is None
    assert {row["line"] for row in rows if row["part"] == "bundle_load"} == {1, 3}


@pytest.mark.parametrize("change", UNUSUAL.values(), ids=UNUSUAL)
def test_an_unusual_line_is_taken_with_all_it_says(change: Spoil) -> None:
    content = change(report(7))
    found = read_line("", content)
    rows = read(packed([content]))
    (told,) = [row for row in rows if row["part"] == "lines"]
    assert (told["file"], told["line"], told["content"]["fault"]) == (FILE, 1, None)
    plain = json.loads(told["content"]["text"])
    assert plain.pop("bundle_count") == len(found["bundles"]["bundle"])
    known = {*KINDS["report"].added, *report(1)}
    assert plain == {name: found[name] for name in known if name != "bundles"}
    bundles = [row for row in rows if row["part"] == "bundle_load"]
    for name, values in found["bundles"].items():
        assert [row[name] for row in bundles] == [
            float(one) if name.endswith("per_s") else one for one in values
        ]
    for name in ("cluster", "writer", "instance", "seq", "at_ms", "broker", "interval_s"):
        assert {row[name] for row in bundles} <= {found[name]}


def test_lines_of_the_other_stream_are_taken_for_what_they_are() -> None:
    (told,) = rows_of("lines", packed([cut(5)]))
    assert (told["content"]["kind"], told["seq"]) == ("cut", 5)
    assert json.loads(told["content"]["text"])["parts"] == list(BUNDLES)


def test_every_file_is_told_with_its_last_line_even_an_empty_one() -> None:
    found = rows_of("files", packed([line(report(1)), b"x"]), packed([]), packed([cut(1)]))
    assert [(row["file"], row["line"]) for row in found] == [(FILE, 2), (FILE, 1), (FILE, 1)]


def test_more_rows_than_are_given_away_at_once_all_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, least in (("_ROWS_AT_ONCE", 20), ("_TEXT_AT_ONCE", 4096)):
        monkeypatch.setattr(f"loadmanager.pipeline.ingest.lines.{name}", least)
    rows = read(packed([line(report(seq)) for seq in range(1, 101)]))
    assert sorted(row["seq"] for row in rows if row["part"] == "lines") == list(range(1, 101))
    assert sum(row["part"] == "bundle_load" for row in rows) == 200


def members(*contents: bytes) -> bytes:
    return b"".join(gzip.compress(content, mtime=0) for content in contents)


def unpacked(content: bytes) -> list[Line]:
    return list(lines_of(memoryview(content)))


A = members(b"a\n")


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        pytest.param(members(b"a\nb", b"c\n", b"", b"d\n"), [b"a", b"bc", b"d"], id="members"),
        pytest.param(members(b"a\nb"), [b"a", b"b"], id="no line feed at the end"),
        pytest.param(members(b""), [], id="an empty member"),
        pytest.param(A + b"\0" * 512, [b"a"], id="zeros as padding"),
    ],
)
def test_a_sound_file_is_one_stream_of_lines(content: bytes, lines: list[bytes]) -> None:
    assert unpacked(content) == [Line(one) for one in lines]


@pytest.mark.parametrize(
    ("content", "before", "fault"),
    [
        pytest.param(b'{"schema":1}\n', [], "incorrect header check", id="no gzip"),
        pytest.param(A + b"garbage", [b"a"], "", id="garbage behind the last member"),
        pytest.param(b"", [], "the file is empty; expected gzip", id="empty"),
    ],
)
def test_what_is_not_gzip_is_told(content: bytes, before: list[bytes], fault: str) -> None:
    *sound, last = unpacked(content)
    assert sound == [Line(one) for one in before]
    assert last.fault is not None
    assert fault in last.fault


@pytest.mark.parametrize("missing", [1, 8, 20])
def test_a_truncated_file_gives_the_members_before_and_says_where_it_ends(missing: int) -> None:
    content = members(b"a\nb\n", b"c\n")[:-missing]
    *sound, last = unpacked(content)
    assert sound[:2] == [Line(b"a"), Line(b"b")]
    assert last.fault == f"the file ends within a gzip member, after {len(content)} bytes"


def test_within_a_member_lines_are_read_up_to_the_break() -> None:
    noise = [os.urandom(30).hex().encode() for _ in range(10_000)]
    content = members(b"\n".join(noise))
    *sound, last = unpacked(content[: len(content) // 2])
    assert 4000 < len(sound) < 6000
    assert [one.content for one in sound] == noise[: len(sound)]
    assert noise[len(sound)].startswith(last.content)
    assert last.fault is not None


def test_damage_in_the_middle_costs_what_comes_after_it() -> None:
    content = bytearray(members(b"a\n", b"b\n" * 50_000, b"c\n"))
    content[60] ^= 0xFF
    *sound, last = unpacked(bytes(content))
    assert sound[0] == Line(b"a")
    assert last.fault is not None
    assert last.fault.startswith("the file is damaged between bytes ")
    assert last.fault.endswith("; expected gzip")


@pytest.mark.parametrize("after", [[], [b"b"]], ids=["at the end", "before others"])
def test_a_line_without_end_is_told_once_and_does_not_fill_the_memory(
    after: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LONGEST_LINE_BYTES", 100_000)
    endless = os.urandom(400_000).replace(b"\n", b" ")
    ending = b"".join(b"\n%b\n" % one for one in after)
    first, endless_line, *rest = unpacked(members(b"a\n" + endless + ending))
    assert (first, rest) == (Line(b"a"), [Line(one) for one in after])
    assert endless_line.fault == "a line of more than 100000 bytes"
    assert len(endless_line.content) < 300_000


DAY_MS = 86_400_000
FOLDER = "file:/some/where/date=2026-01-05/hour=12"
Made = list[tuple[str, date | None, pa.Table]]


def binary_files(contents: Iterable[bytes]) -> pa.RecordBatch:
    files = {f"{FOLDER}/{number}.jsonl.gz": one for number, one in enumerate(contents)}
    return pa.RecordBatch.from_pydict({"path": list(files), "content": list(files.values())})


def made(*contents: bytes) -> Made:
    return [
        (row["part"], row["date"], pq.read_table(io.BytesIO(row["content"] + SEPARATOR.encode())))
        for batch in parquet_files_of(iter([binary_files(contents)]))
        for row in batch.to_pylist()
    ]


def rows_in(part: str, found: Made) -> list[dict[str, Any]]:
    return [row for name, _, rows in found if name == part for row in rows.to_pylist()]


def in_order(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


def everything() -> list[bytes]:
    spoilt = [spoil(report(100 + number)) for number, spoil in enumerate(SPOILT.values())]
    unusual = [change(report(300 + number)) for number, change in enumerate(UNUSUAL.values())]
    sound = packed([line(report(1)), cut(2), *spoilt, *unusual])
    return [sound, packed([]), b"no gzip", sound[: len(sound) // 2]]


@pytest.mark.parametrize("at_once_bytes", [1, 40 << 20], ids=["many files", "few files"])
def test_all_that_is_read_is_in_files(at_once_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_AT_ONCE_BYTES", at_once_bytes)
    read = dict[str, list[dict[str, Any]]]()
    for part, some in parts_of(iter([binary_files(everything())])):
        read.setdefault(part, []).extend(some.to_pylist())
    found = made(*everything())
    assert {part for part, _, _ in found} == {lines.BUNDLES, lines.LINES, lines.FILES}
    for part in (lines.BUNDLES, lines.LINES, lines.FILES):
        rows = rows_in(part, found)
        names = read[part][0].keys()
        assert in_order({name: row[name] for name in names} for row in rows) == in_order(read[part])


def test_rows_of_bundles_have_the_columns_of_their_table_in_its_types() -> None:
    (_, _, rows), *_ = made(packed([line(report(1))]))
    names = {"file", "line", *BUNDLE_LOAD.schema.names} - {"date"}
    assert set(rows.schema.names) == names, "the date is told by the folder"
    assert {rows.schema.field(name).type for name in ("seq", "at_ms", "topics")} == {pa.int64()}
    assert {rows.schema.field(name).type for name in ("bundle", "namespace")} == {pa.string()}
    assert rows.schema.field("at").type == pa.timestamp("us", "UTC")
    assert rows.schema.field("window_s").type == pa.float64()


def test_rows_are_filed_under_the_day_they_say_whatever_their_order() -> None:
    last_ms = DAY_MS - 1
    moments = {1: NOON_MS, 2: 0, 3: NOON_MS + DAY_MS, 4: last_ms, 5: NOON_MS}
    found = made(packed(line(report(seq, at_ms=at_ms)) for seq, at_ms in moments.items()))
    by_date = {
        day: {row["seq"] for row in rows.to_pylist()}
        for part, day, rows in found
        if part == lines.BUNDLES
    }
    assert by_date == {date(1970, 1, 1): {2, 4}, date(2026, 1, 5): {1, 5}, date(2026, 1, 6): {3}}
    for row in rows_in(lines.BUNDLES, found):
        assert row["at_ms"] == moments[row["seq"]]
        assert row["at"] == datetime.fromtimestamp(row["at_ms"] // 1000, UTC).replace(
            microsecond=row["at_ms"] % 1000 * 1000
        )


@pytest.mark.parametrize(
    ("bundle", "namespace"),
    [
        ("tenant/orders/0x00000000_0x80000000", "tenant/orders"),
        ("a/b/c/d", "a/b/c"),
        ("/", ""),
        ("none", ""),
        ("", ""),
    ],
)
def test_a_namespace_is_what_stands_before_the_range(bundle: str, namespace: str) -> None:
    fields = report(1)
    fields["bundles"]["bundle"] = [bundle, "t/n/0x00000000_0xffffffff"]
    rows = rows_in(lines.BUNDLES, made(packed([line(fields)])))
    assert [row["namespace"] for row in rows] == [namespace, "t/n"]


def test_no_history_is_no_file() -> None:
    assert list(parquet_files_of(iter([]))) == []


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
