"""From a directory of history to tables: what they say is what the lines say."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from history_lines import ORIGIN, SPOILT, UNUSUAL, cut, line, packed, put, report
from history_sinks import finished, lines_in

from loadmanager.core.history.reading import read_line
from loadmanager.core.history.schema import Stream
from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.ingest import job as ingest
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.running import run_job
from loadmanager.pipeline.store import Store
from loadmanager.pipeline.tables import INGESTED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
Line = Mapping[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rows_of(store: Store, table: str) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in store.table(table).collect()]


def told_by(lines: Iterable[Line], kind: str) -> list[Line]:
    return [one for one in lines if one["kind"] == kind]


def items_of(columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


@pytest.fixture(name="lines", scope="module")
def lines_fixture(small_history: Path) -> list[Line]:
    return list(lines_in(*finished(small_history)))


@pytest.mark.parametrize(
    ("table", "kind", "left_out"),
    [
        ("broker_load", "report", {"bundles"}),
        ("rounds", "round", {"brokers", "in_flight", "refusals"}),
        ("moves", "move", set()),
        ("hand_overs", "hand_over", set()),
        ("terms", "term", set()),
    ],
)
def test_a_table_has_a_row_for_each_line_of_its_kind(
    ingested: Store, lines: list[Line], table: str, kind: str, left_out: set[str]
) -> None:
    told = {one["seq"]: one for one in told_by(lines, kind)}
    rows = {row["seq"]: row for row in rows_of(ingested, table)}
    assert told
    assert rows.keys() == told.keys()
    for seq, row in rows.items():
        names = told[seq].keys() - left_out - {"schema", "kind"}
        assert {name: row[name] for name in names} == {name: told[seq][name] for name in names}
        assert row["at"].replace(tzinfo=UTC) == EPOCH + timedelta(milliseconds=row["at_ms"])
        assert row["date"] == row["at"].date()


def test_each_bundle_of_a_report_has_a_row_with_it(ingested: Store, lines: list[Line]) -> None:
    of_report = ("seq", "at_ms", "broker", "broker_class", "reported_at_ms", "interval_s")
    told = [
        {**{name: one[name] for name in (*of_report, "window_s")}, **item}
        for one in told_by(lines, "report")
        for item in items_of(one["bundles"])
    ]
    rows = rows_of(ingested, "bundle_load")
    assert {row["namespace"] for row in rows} == {"tenant/orders", "tenant/clicks", "tenant/logs"}
    assert _sorted(rows, told[0].keys()) == _sorted(told, told[0].keys())


def test_what_rounds_saw_and_refused_is_told(ingested: Store, lines: list[Line]) -> None:
    told = {one["seq"]: one for one in told_by(lines, "round")}
    for row in rows_of(ingested, "rounds"):
        assert row["brokers"] == items_of(told[row["seq"]]["brokers"])
        assert row["in_flight"] == items_of(told[row["seq"]]["in_flight"])
    refused = [
        {"round": one["round"], **item}
        for one in told.values()
        for item in items_of(one["refusals"])
    ]
    assert _sorted(rows_of(ingested, "refusals"), refused[0]) == _sorted(refused, refused[0])
    averages = [
        {"round": one["round"], **item}
        for one in told_by(lines, "bundles")
        for item in items_of(one["bundles"])
    ]
    rows = rows_of(ingested, "bundle_averages")
    assert _sorted(rows, averages[0]) == _sorted(averages, averages[0])


def _sorted(rows: Iterable[Line], names: Iterable[str]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


def test_every_ingested_table_can_be_read_though_it_has_no_rows(ingested: Store) -> None:
    for table in INGESTED.values():
        assert ingested.table(table.name).schema.names == table.schema.names
    assert rows_of(ingested, "ticks") == rows_of(ingested, "quarantine") == []


@pytest.fixture(name="spoilt", scope="module")
def spoilt_fixture(
    spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> tuple[Store, list[str]]:
    """Ingest all that may be wrong with lines and files, and what only looks so."""
    top = tmp_path_factory.mktemp("spoilt [his]tory {1,2}")
    spoilt = [spoil(report(100 + number)) for number, spoil in enumerate(SPOILT.values())]
    sound = [line(report(1 + number)) for number in range(len(SPOILT))]
    put(top, [one for two in zip(spoilt, sound, strict=True) for one in two])
    unusual = [change(report(300 + number)) for number, change in enumerate(UNUSUAL.values())]
    put(top, unusual, first_seq=300)
    broken_off = packed(line(report(seq)) for seq in range(400, 410))
    put(top, broken_off[:-30], first_seq=400)
    put(top, b"no gzip", first_seq=500)
    put(top, [line(report(600))] * 3, first_seq=600)
    put(top, [line(report(600)), line(report(650))], first_seq=601)
    put(top, [line(report(650, topics=9))], first_seq=650)
    put(top, [cut(600)], first_seq=600, stream=Stream.ROUNDS)
    put(top, [line(report(700))], first_seq=700, being_written=True)
    (top / "date=2026-01-05" / "hour=12" / "notes.txt").write_text("by hand")
    store = Store(spark, f"{top}/out {{a}}")
    told = run_job("ingest", Work(spark=spark, store=store, history=str(top)))
    return store, told


def test_sound_lines_beside_spoilt_ones_are_taken(spoilt: tuple[Store, list[str]]) -> None:
    rows = {row["seq"]: row for row in rows_of(spoilt[0], "broker_load")}
    assert set(range(1, 1 + len(SPOILT))) <= rows.keys()
    for number, change in enumerate(UNUSUAL.values()):
        found = read_line("", change(report(300 + number)))
        row = rows[found["seq"]]
        for name in report(1).keys() - {"schema", "kind", "bundles"}:
            rate = isinstance(row[name], float)
            assert row[name] == (float(found[name]) if rate else found[name]), (name, number)
        assert row["date"] == (EPOCH + timedelta(milliseconds=found["at_ms"])).date()


def test_where_a_file_breaks_off_is_told(spoilt: tuple[Store, list[str]]) -> None:
    reasons = {
        (row["file"].rpartition("-")[2], row["line"]): row["reason"]
        for row in rows_of(spoilt[0], "quarantine")
    }
    assert "ends within a gzip member" in reasons["000000000400.jsonl.gz", 10]
    assert "incorrect header check" in reasons["000000000500.jsonl.gz", 1]


def test_of_one_number_one_line_is_taken_if_alike(spoilt: tuple[Store, list[str]]) -> None:
    store, _ = spoilt
    reports, bundles = rows_of(store, "broker_load"), rows_of(store, "bundle_load")
    for seq in (600, 650):
        assert sum(row["seq"] == seq for row in reports) == 1
        assert sum(row["seq"] == seq for row in bundles) == 2
    (cut_row,) = rows_of(store, "cuts")
    assert cut_row["seq"] == 600, "the other stream has numbers of its own"
    (reason,) = [
        row["reason"] for row in rows_of(store, "quarantine") if "another" in row["reason"]
    ]
    told = f"another line of {ORIGIN.writer}, instance {ORIGIN.instance}, has it"
    assert reason == f"seq = 650; expected a number of its own: {told}"


def test_totals_add_up_with_all_that_was_left_alone(spoilt: tuple[Store, list[str]]) -> None:
    store, told = spoilt
    (batch,) = store.batches()
    totals = batch.manifest["lines"]
    refused = store.table("quarantine").count()
    kept = store.table("broker_load").count() + store.table("cuts").count()
    read = 2 * len(SPOILT) + len(UNUSUAL) + 10 + 1 + 6 + 1
    assert totals == {"read": read, "kept": kept, "quarantined": refused, "duplicate": 3}
    assert read == kept + refused + 3
    sums = f"{kept} kept + {refused} quarantined + 3 duplicate"
    assert told == [
        "files: 8 to be read, 0 read before",
        "being written, left for later: 1",
        "not of history, left alone: 2: date=2026-01-05/hour=12/notes.txt, out {a}/",
        f"lines: {read} read = {sums}",
        "the table quarantine has file, line, reason and text of each that was refused",
    ]


def test_a_directory_that_is_missing_empty_or_of_something_else_is_refused(
    spark: "SparkSession", tmp_path: Path
) -> None:
    store = Store(spark, str(tmp_path / "out"))

    def taken(history: str | None) -> None:
        ingest.run(Work(spark=spark, store=store, history=history))

    with pytest.raises(PipelineError, match="no history is given; expected --history DIR"):
        taken(None)
    with pytest.raises(PipelineError, match="nowhere: there is no such directory"):
        taken(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(PipelineError, match="empty: there is no file of history in it; expected"):
        taken(str(tmp_path / "empty"))
    (tmp_path / "empty" / "photos").mkdir()
    with pytest.raises(PipelineError, match="in it, but 1: photos/; expected date="):
        taken(str(tmp_path / "empty"))
    with pytest.raises(PipelineError, match='No FileSystem for scheme "nosuch"'):
        taken("nosuch://bucket/history")
    with pytest.raises(PipelineError, match=r"no table broker_load yet; expected `loadmanager"):
        store.table("broker_load")
