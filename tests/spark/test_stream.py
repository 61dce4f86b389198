"""The stream beside a rollup of the same history: each minute once and the same, come what may."""

import os
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from killed_jobs import killed_at
from load_rows import RATES

from loadmanager.adapters.history import recorded
from loadmanager.core.history.reading import read_line
from loadmanager.core.history.records import Origin, Record
from loadmanager.core.history.schema import Stream
from loadmanager.core.ids import BrokerId
from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.rollup.minutes import (
    broker_minutes,
    broker_slices,
    bundle_minutes,
    bundle_slices,
    namespace_minutes,
)
from loadmanager.pipeline.store import Store
from loadmanager.pipeline.streaming import job as stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

WATERMARK_S = 600.0
OPTIONS = {"once": True, "watermark_s": WATERMARK_S}
Minutes = Mapping[tuple[str, str, Any], Mapping[str, Any]]


class Following:
    """A history that grows, and the stream that follows it."""

    def __init__(self, spark: "SparkSession", whole: Path, folder: Path) -> None:
        self.whole, self.history = whole, folder / "history"
        self.history.mkdir()
        self.store = Store(spark, str(folder / "out"))
        self.told: list[str] = []
        self._spark = spark

    def add(self, hour: int) -> Path:
        """Let the files of an hour appear; return the one with reports."""
        name = f"date=2026-01-05/hour={hour:02d}"
        shutil.copytree(self.whole / name, self.history / name, dirs_exist_ok=True)
        (found,) = (self.history / name).glob("reports-*.gz")
        return found

    def run(
        self, options: Mapping[str, Any] = OPTIONS, tell: Callable[[str], None] | None = None
    ) -> str:
        """Take up what is there, and return the last line that is told."""
        work = Work(
            spark=self._spark,
            store=self.store,
            history=str(self.history),
            options=options,
            print_line=tell or self.told.append,
        )
        return stream.run(work)[-1]

    def minutes(self) -> list[dict[str, Any]]:
        """Return all rows of ``stream_minutes``."""
        return [row.asDict() for row in self.store.table("stream_minutes").collect()]

    def alerts(self, kind: str) -> list[dict[str, Any]]:
        """Return the rows of ``stream_alerts`` of one kind."""
        rows = self.store.table("stream_alerts").where(f"kind = '{kind}'").collect()
        return [row.asDict() for row in rows]


@pytest.fixture
def following(spark: "SparkSession", small_history: Path, tmp_path: Path) -> Following:
    """Return a stream that has nothing to follow yet."""
    return Following(spark, small_history, tmp_path)


@pytest.fixture(scope="module")
def rolled_up(ingested: Store) -> Minutes:
    """Return the minutes of a rollup of all of `small_history`."""
    bundles = bundle_minutes(bundle_slices(ingested.table("bundle_load"))).persist()
    brokers = broker_minutes(broker_slices(ingested.table("broker_load")))
    tables = {"bundle": bundles, "broker": brokers, "namespace": namespace_minutes(bundles)}
    found = {
        (level, row[level], row["minute"]): row.asDict()
        for level, table in tables.items()
        for row in table.collect()
    }
    bundles.unpersist()
    return found


def assert_each_once_and_the_same(found: list[dict[str, Any]], rolled_up: Minutes) -> None:
    told = {(row["level"], row["name"], row["minute"]): row for row in found}
    assert len(told) == len(found)
    last = max(row["minute"] for row in found)
    expected = {key: row for key, row in rolled_up.items() if key[2] <= last}
    assert {key for key in told if key[0] != "cluster"} == expected.keys()
    for key, row in expected.items():
        names = ["seconds", *(f"{rate}_mean" for rate in RATES)]
        if key[0] != "namespace":
            names += ["reports", *(f"{rate}_max" for rate in RATES)]
        if key[0] == "broker":
            names += ["cpu_fraction_mean"]
        for name in names:
            assert told[key][name] == pytest.approx(row[name], rel=1e-9), (key, name)


def test_each_minute_is_told_once_and_as_a_rollup_has_it_though_batches_break_off(
    following: Following, rolled_up: Minutes
) -> None:
    following.add(0)
    following.run()
    first = following.minutes()
    assert first

    # What a writer has not finished is left alone.
    spoilt = following.add(1).with_name("_reports-x-y-1.jsonl.gz")
    spoilt.write_bytes(b"no gzip")
    state = Path(following.store.out) / "stream/state"
    (state / "000001").write_text("where the state is to be written")
    with pytest.raises(PipelineError, match="a batch failed"):
        following.run()
    # It broke off after its minutes were written, and before it counted.
    assert list((Path(following.store.out) / "stream_minutes/batch=000001").glob("*.parquet"))
    (state / "000001").unlink()

    # More came meanwhile, and some of it twice.
    last = following.add(2)
    shutil.copy(last, last.with_name("reports-copied-zz-1.jsonl.gz"))
    told = following.run()
    assert told == "stream: minutes before 2026-01-05 02:49 are over and reported"
    found = following.minutes()
    assert_each_once_and_the_same(found, rolled_up)
    assert len(found) > len(first)
    assert following.alerts("late") == []
    clusters = [row for row in found if row["level"] == "cluster"]
    assert all(row["usage_max_over_mean"] >= 1.0 for row in clusters)
    # Each once, whatever broke off: a beginning, its end, and so on.
    imbalances = sorted(following.alerts("imbalance"), key=lambda row: row["at"])
    events = [row["event"] for row in imbalances]
    assert events == [("began", "ended")[place % 2] for place in range(len(events))] != []
    assert {row["cluster"] for row in imbalances} == {"small"}
    assert [row for row in imbalances if f"  {row['text']}" not in following.told] == []

    assert following.run() == told
    assert len(following.minutes()) == len(found)


def late_report(history: Path, at_ms: int, like: Path, writer: str) -> None:
    """Write a file with one report of long ago, by a sidecar that was forgotten."""
    import gzip  # noqa: PLC0415 - nobody else here looks into files

    with gzip.open(like) as file:
        line = dict(read_line("", next(iter(file)).rstrip()))
    kept = {name: line[name] for name in list(line)[7:]} | {"interval_s": 10.0}
    record = Record("report", at_ms, kept | {"broker": writer, "reported_at_ms": at_ms})
    with recorded(history, Origin("small", BrokerId(writer), "cd34")) as sink:
        sink.offer(Stream.REPORTS, at_ms, lambda: [record])


def test_reports_within_the_watermark_count_and_later_ones_are_told(following: Following) -> None:
    like = following.add(0)
    following.run()
    before = following.minutes()
    over = max(row["minute"] for row in before)
    over_ms = round(over.timestamp() * 1000)
    late_report(following.history, over_ms + 30_000, like, "late:8080")
    late_report(following.history, over_ms + 90_000, like, "intime:8080")
    following.run()
    assert len(following.minutes()) == len(before)
    (late,) = following.alerts("late")
    assert (late["subject"], late["value"], late["minutes"]) == ("late:8080", 10.0, 1)
    assert any("late:8080: 1 parts of minutes, 10 s, came after" in line for line in following.told)
    following.add(1)
    following.run()
    names = {row["name"] for row in following.minutes() if row["level"] == "broker"}
    assert "intime:8080" in names
    assert "late:8080" not in names


def test_an_interrupt_ends_the_stream_after_the_batch_under_way(
    following: Following, rolled_up: Minutes
) -> None:
    following.add(0)

    def tell(line: str) -> None:
        following.told.append(line)
        if line.startswith("batch 0"):
            os.kill(os.getpid(), signal.SIGINT)

    told = following.run({"watermark_s": WATERMARK_S, "for_s": 400.0}, tell)
    assert "stream: stopping after the batch under way" in following.told
    assert told.startswith("stream: minutes before 2026-01-05 00:49")
    assert_each_once_and_the_same(following.minutes(), rolled_up)
    assert following.run() == told
    assert_each_once_and_the_same(following.minutes(), rolled_up)


def test_a_stream_whose_process_is_killed_goes_on_where_it_was(
    following: Following, rolled_up: Minutes, tmp_path: Path
) -> None:
    following.add(0)
    minutes = Path(following.store.out) / "stream_minutes"
    wanted = killed_at(
        lambda: list(minutes.glob("batch=*")),
        tmp_path / "process",
        *("stream", "--for-s", "400", "--watermark-s", str(WATERMARK_S)),
        *("--history", str(following.history), "--out", following.store.out),
    )
    assert wanted, (tmp_path / "process" / "said").read_text()
    following.add(1)
    following.run()
    assert_each_once_and_the_same(following.minutes(), rolled_up)
    alerts = [(one["event"], one["subject"], one["since"]) for one in following.alerts("imbalance")]
    assert alerts
    assert sorted(set(alerts)) == sorted(alerts), "each is told once"
