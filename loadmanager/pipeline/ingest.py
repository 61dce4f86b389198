"""History to tables: only files that are new, each line once, nothing left out in silence."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from loadmanager.pipeline.contract import PipelineError
from loadmanager.pipeline.history_files import Bounds, Found, HistoryFile, find_files
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.lines import BUNDLES, LINES, READ, read_files
from loadmanager.pipeline.once import DUPLICATE, kept_lines, keys_of, losers, refused
from loadmanager.pipeline.store import Store
from loadmanager.pipeline.tables import (
    BUNDLE_LOAD,
    KEYS,
    OF_LINES,
    QUARANTINE,
    parsed_schema,
    with_dates,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_BYTES: Final = 2 << 30
BATCH_FILES: Final = 10_000
"""A batch is committed by itself, so one that dies costs no more than this."""

_SETTINGS: Final = {
    # Files are read as a whole: a task is to hold one large one, or some small ones.
    "spark.sql.files.maxPartitionBytes": str(32 << 20),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    # A task writes to few folders at a time and need not sort its rows by them.
    "spark.sql.maxConcurrentOutputFileWriters": "32",
    # The former form of timestamps has no statistics, and other readers misread it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_SHOWN: Final = 5
_FILE_AND_LINE: Final = ["file", "line"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What became of the lines that were read: ``read`` is the sum of the other three."""

    read: int = 0
    kept: int = 0
    quarantined: int = 0
    duplicate: int = 0

    def __add__(self, other: "Totals") -> "Totals":
        """Return both together."""
        return Totals(
            **{name: value + getattr(other, name) for name, value in asdict(self).items()}
        )


def run(work: Work) -> list[str]:
    """Take what is new in ``work.history`` into the tables, and say what became of it.

    Raises:
        PipelineError: there is no such directory, or no file of history in it.
    """
    if work.history is None:
        raise PipelineError("ingest: no history is given; expected --history DIR")
    history, store = work.history.rstrip("/"), work.store
    read = {name: state for one in store.batches() for name, state in one.manifest["files"].items()}
    found = find_files(store.files, history, read, Bounds(work.since, work.until))
    if not found.has_history:
        raise PipelineError(_nothing_there(history, found))
    totals = Totals()
    with _settings(work.spark):
        batches = list(_batches(found.new))
        for place, files in enumerate(batches, start=1):
            taken = Batch(work.spark, store, files).take()
            totals += taken
            if len(batches) > 1:
                work.tell(f"batch {place} of {len(batches)}: {taken.read} lines read")
    return [*_told(found), *_told_totals(totals)]


class Batch:
    """One batch: what some files hold, into the tables, as a whole or not at all."""

    def __init__(self, spark: "SparkSession", store: Store, files: Sequence[HistoryFile]) -> None:
        self._spark = spark
        self._store = store
        self._files = files
        self._number = 1 + max((one.number for one in store.batches()), default=0)
        self._draft = f"{store.out}/drafts/{self._number:06d}"

    def take(self) -> Totals:
        """Read, write, commit; return what became of the lines."""
        self._read().write.mode("overwrite").partitionBy("part", "date").parquet(self._draft)
        lines = self._spark.read.parquet(f"{self._draft}/part={LINES}")
        lost = self._lost(lines)
        kept = kept_lines(lines, lost)
        tables = [BUNDLE_LOAD.name] if self._take_bundles(lost) else []
        kinds = {row["kind"]: row["count"] for row in kept.groupBy("told.kind").count().collect()}
        for made in OF_LINES:
            if made.kind in kinds:
                self._store.put(made.table, self._number, made.make(_parsed(kept, made.kind)))
                tables.append(made.table.name)
        self._store.put(KEYS, self._number, keys_of(kept))
        self._store.put(QUARANTINE, self._number, refused(lines, lost))
        totals = self._totals(lines, lost)
        manifest = {
            "files": {one.name: one.state for one in self._files},
            "tables": [*tables, KEYS.name, QUARANTINE.name],
            "totals": asdict(totals),
        }
        self._store.commit(self._number, manifest)
        self._store.files.delete(self._draft)
        return totals

    def _read(self) -> DataFrame:
        paths = [_literal(one.path) for one in self._files]
        content = self._spark.read.format("binaryFile").load(paths).select("path", "content")
        rows = with_dates(content.mapInArrow(read_files, READ))
        date = F.when(F.col("part") == BUNDLES, F.col("date"))
        namespace = F.substring_index("bundle", "/", 2)
        return rows.withColumns({"date": date, "namespace": namespace})

    def _lost(self, lines: DataFrame) -> DataFrame | None:
        """Return the lines that others were taken instead of (see `losers`), None for none."""
        found = losers(lines, self._store.batches_of(KEYS))
        found.write.mode("overwrite").parquet(f"{self._draft}/lost")
        written = self._spark.read.schema(found.schema).parquet(f"{self._draft}/lost")
        return None if written.isEmpty() else written

    def _take_bundles(self, lost: DataFrame | None) -> bool:
        """Give the rows of bundles their place; return whether there are any."""
        draft = f"{self._draft}/part={BUNDLES}"
        if not self._store.files.exists(draft):
            return False
        place = self._store.place(BUNDLE_LOAD.name, self._number)
        if lost is None:
            self._store.files.delete(place)
            self._store.files.rename(draft, place)
        else:
            rows = self._spark.read.parquet(draft).join(lost, _FILE_AND_LINE, "left_anti")
            self._store.put(BUNDLE_LOAD, self._number, rows)
        return True

    def _totals(self, lines: DataFrame, lost: DataFrame | None) -> Totals:
        counted = lines.agg(F.count("*"), F.count("told.fault")).first()
        assert counted is not None  # noqa: S101 - an aggregate without groups has a row
        read, faults = counted
        verdicts: Mapping[str, int] = {}
        if lost is not None:
            verdicts = {
                one["verdict"]: one["count"] for one in lost.groupBy("verdict").count().collect()
            }
        duplicate = verdicts.get(DUPLICATE, 0)
        quarantined = faults + sum(verdicts.values()) - duplicate
        return Totals(
            read=read,
            kept=read - duplicate - quarantined,
            quarantined=quarantined,
            duplicate=duplicate,
        )


def _parsed(kept: DataFrame, kind: str) -> DataFrame:
    """Return the fields of the lines of a kind; they were judged, so all of them fit."""
    lines = kept.where(F.col("told.kind") == kind)
    parsed = F.from_json("told.text", parsed_schema(kind), {"mode": "FAILFAST"})
    return with_dates(lines.select(parsed.alias("of_line")).select("of_line.*"))


def _batches(files: Sequence[HistoryFile]) -> Iterator[list[HistoryFile]]:
    batch: list[HistoryFile] = []
    size_bytes = 0
    for one in files:
        if batch and (len(batch) == BATCH_FILES or size_bytes + one.size_bytes > BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(one)
        size_bytes += one.size_bytes
    if batch:
        yield batch


def _literal(path: str) -> str:
    """Return a path in which Spark sees no pattern."""
    return "".join(f"\\{char}" if char in "\\*?[]{}" else char for char in path)


@contextlib.contextmanager
def _settings(spark: "SparkSession") -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            if former is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, former)


def _nothing_there(history: str, found: Found) -> str:
    told = f"{history}: there is no file of history in it"
    if found.foreign:
        told += f", but {_some(found.foreign)}"
    return f"{told}; expected date=*/hour=*/reports-*.jsonl.gz"


def _told(found: Found) -> Iterator[str]:
    yield f"files: {len(found.new)} new, {found.known} read before"
    if found.outside:
        yield f"files outside of --since and --until: {found.outside}, left for later"
    if found.being_written:
        yield f"files being written: {found.being_written}, left for later"
    if found.changed:
        yield f"files that changed and were read again: {_some(found.changed)}"
    if found.foreign:
        yield f"not of history, left alone: {_some(found.foreign)}"
    if found.too_large:
        yield f"too large to be read: {_some(found.too_large)}; expected [history] roll_mib kept"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{len(names)}: {shown}" + (", ..." if len(names) > _SHOWN else "")


def _told_totals(totals: Totals) -> Iterator[str]:
    yield (
        f"lines: {totals.read} read = {totals.kept} kept + {totals.quarantined} quarantined + "
        f"{totals.duplicate} duplicate"
    )
    if totals.quarantined:
        yield "see the table quarantine for file, line, reason and text of each"


def totals_of(manifest: Mapping[str, Any]) -> Totals:
    """Return the totals that a batch's manifest tells."""
    return Totals(**manifest["totals"])
