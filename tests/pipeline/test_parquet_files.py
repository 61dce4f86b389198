"""What workers make of history is what they read of it, column by column, day by day."""

import io
from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from history_lines import NOON_MS, SPOILT, UNUSUAL, cut, line, packed, report

from loadmanager.pipeline.ingest import job
from loadmanager.pipeline.ingest.job import SEPARATOR, parquet_files_of
from loadmanager.pipeline.ingest.lines import BUNDLES, FILES, LINES, parts_of
from loadmanager.pipeline.tables import BUNDLE_LOAD

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


def rows_of(part: str, found: Made) -> list[dict[str, Any]]:
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
    assert {part for part, _, _ in found} == {BUNDLES, LINES, FILES}
    for part in (BUNDLES, LINES, FILES):
        rows = rows_of(part, found)
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
        if part == BUNDLES
    }
    assert by_date == {date(1970, 1, 1): {2, 4}, date(2026, 1, 5): {1, 5}, date(2026, 1, 6): {3}}
    for row in rows_of(BUNDLES, found):
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
    rows = rows_of(BUNDLES, made(packed([line(fields)])))
    assert [row["namespace"] for row in rows] == [namespace, "t/n"]


def test_no_history_is_no_file() -> None:
    assert list(parquet_files_of(iter([]))) == []
