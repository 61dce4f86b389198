"""History in pieces, twice, late, or while a run is killed: the tables are the same."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from history_lines import NOON_MS, cut, line, packed, put, report

from loadmanager.core.history.records import Origin
from loadmanager.core.history.schema import Stream
from loadmanager.core.ids import BrokerId
from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.ingest import job as ingest
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.running import job_lock, run_job
from loadmanager.pipeline.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
HOUR_MS = 3_600_000
SECOND = Origin("test", BrokerId("b1:8080"), "cd34")
"""A second sidecar with the name of the first."""


class Killed(Exception):
    pass


class DiesBeforeCommit(Store):
    """A store whose process is killed when all is written and nothing committed."""

    def commit(self, batch: int, manifest: Mapping[str, Any]) -> None:
        raise Killed(batch, sorted(manifest))


def content(store: Store) -> dict[str, list[str]]:
    return {
        name: sorted(str(row) for row in store.table(name).collect())
        for name in ("broker_load", "bundle_load", "cuts", "doubled")
    }


def take(store: Store, spark: "SparkSession", history: Path, **more: Any) -> list[str]:
    return ingest.run(Work(spark=spark, store=store, history=str(history), **more))


def first_piece(top: Path) -> None:
    put(top, [line(report(seq)) for seq in range(1, 5)])
    put(top, [cut(1)], stream=Stream.ROUNDS)
    # Cut off while it was copied here.
    later = packed(line(report(seq, at_ms=NOON_MS + HOUR_MS, topics=seq)) for seq in range(5, 10))
    put(top, later[:-20], first_seq=5, at_ms=NOON_MS + HOUR_MS)


def second_piece(top: Path) -> None:
    # The whole of what was cut off.
    put(
        top,
        [line(report(seq, at_ms=NOON_MS + HOUR_MS, topics=seq)) for seq in range(5, 10)],
        first_seq=5,
        at_ms=NOON_MS + HOUR_MS,
    )
    # A copy of old lines beside new ones, and one that is late by a day, from a clock set back.
    put(top, [line(report(seq)) for seq in (2, 3, 10)], first_seq=10)
    put(
        top,
        [line(report(11, at_ms=NOON_MS - 24 * HOUR_MS))],
        first_seq=11,
        at_ms=NOON_MS - 24 * HOUR_MS,
    )
    # A second sidecar reported on the broker from five minutes after noon to half past.
    put(
        top,
        [
            line(report(seq, at_ms=NOON_MS + minute * 60_000, origin=SECOND, started_at_ms=NOON_MS))
            for seq, minute in ((1, 5), (2, 30))
        ],
        origin=SECOND,
    )
    put(top, [line(report(12, at_ms=NOON_MS + 600_000))], first_seq=12)


@pytest.fixture(name="at_once", scope="module")
def at_once_fixture(
    spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """Return what the tables have if all pieces are there when they are read."""
    top = tmp_path_factory.mktemp("at_once")
    first_piece(top / "history")
    second_piece(top / "history")
    store = Store(spark, str(top / "out"))
    take(store, spark, top / "history")
    return content(store)


def test_all_that_happens_to_history_leaves_the_tables_as_if_it_had_been_read_at_once(
    spark: "SparkSession",
    tmp_path: Path,
    at_once: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history, store = tmp_path / "history", Store(spark, str(tmp_path / "out"))
    first_piece(history)
    one = datetime(2026, 1, 5, 13, tzinfo=UTC)
    told = take(store, spark, history, until=one)
    assert "outside of --since and --until, left for later: 1" in told
    assert told[-1] == "lines: 5 read = 5 kept + 0 quarantined + 0 duplicate"
    told = take(store, spark, history)
    assert told[0] == "files: 1 to be read, 2 read before"
    assert "lines: 5 read = 4 kept + 1 quarantined + 0 duplicate" in told
    before = content(store)
    second_piece(history)
    with pytest.raises(Killed):
        take(DiesBeforeCommit(spark, store.out), spark, history)
    assert content(store) == before, "what was not committed does not count"
    # Retention deletes a file while the first batch is read; then it is copied here again.
    vanishing = history / "date=2026-01-05/hour=12/reports-b1_8080-ab12-000000000012.jsonl.gz"
    kept = vanishing.read_bytes()
    progress: list[str] = []

    def tell(told: str) -> None:
        progress.append(told)
        vanishing.unlink(missing_ok=True)

    with monkeypatch.context() as small:
        small.setattr(ingest, "BATCH_FILES", 2)
        told = take(store, spark, history, print_line=tell)
    assert progress == [f"batch {place} of 3 is in the tables" for place in (1, 2, 3)]
    assert [line.partition(": ")[2] for line in told if "read again" in line] == [
        "1: date=2026-01-05/hour=13/reports-b1_8080-ab12-000000000005.jsonl.gz"
    ]
    assert "gone before they were read: 1 files" in told
    assert "lines: 11 read = 5 kept + 0 quarantined + 6 duplicate" in told
    vanishing.write_bytes(kept)
    told = take(store, spark, history)
    assert told[0] == "files: 1 to be read, 6 read before"
    assert content(store) == at_once
    assert take(store, spark, history) == [
        "files: 0 to be read, 7 read before",
        "lines: 0 read = 0 kept + 0 quarantined + 0 duplicate",
    ]
    for batch in store.batches():
        lines = batch.manifest["lines"]
        assert lines["read"] == lines["kept"] + lines["quarantined"] + lines["duplicate"]
    assert not store.files.exists(f"{store.out}/drafts/000001")


def test_of_two_sidecars_of_a_broker_the_later_one_stands(at_once: dict[str, list[str]]) -> None:
    reports = [row for row in at_once["broker_load"] if f"at_ms={NOON_MS + 600_000}" in row]
    assert reports == [], "the first one's report at ten past is passed over"
    assert sum("instance='cd34'" in row for row in at_once["broker_load"]) == 2
    assert sum(f"reported_at_ms={NOON_MS}," in row for row in at_once["broker_load"]) == 5
    (passed_over,) = at_once["doubled"]
    assert "instance='ab12', for_instance='cd34'" in passed_over
    assert f"from_ms={NOON_MS + 5 * 60_000}, until_ms={NOON_MS + 30 * 60_000}" in passed_over


def test_lines_whose_clock_jumped_keep_their_date(at_once: dict[str, list[str]]) -> None:
    (late,) = [row for row in at_once["broker_load"] if "seq=11," in row]
    assert "date=datetime.date(2026, 1, 4)" in late


def test_while_all_files_are_open_tables_are_empty(spark: "SparkSession", tmp_path: Path) -> None:
    history, store = tmp_path / "history", Store(spark, str(tmp_path / "out"))
    put(history, [line(report(1))], being_written=True)
    assert "being written, left for later: 1" in take(store, spark, history)
    assert store.table("bundle_load").count() == 0


def test_two_runs_do_not_write_to_the_same_tables(spark: "SparkSession", tmp_path: Path) -> None:
    put(tmp_path / "history", [line(report(1))])
    store = Store(spark, str(tmp_path / "out"))
    work = Work(spark=spark, store=store, history=str(tmp_path / "history"))
    told = "another ingest is writing to it"
    with job_lock(store.out, "ingest"), pytest.raises(PipelineError, match=told):
        run_job("ingest", work)
    assert run_job("ingest", work)[-1].startswith("lines: 1 read = 1 kept")
