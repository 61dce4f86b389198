"""Writes new files of history to tables; each line once, and all skipped files are reported."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructType

from loadmanager.pipeline.contract import Table
from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.files import literal
from loadmanager.pipeline.ingest.dedup import (
    CONTRADICTION,
    DUPLICATE,
    duplicate_reports,
    kept_lines,
    keys_of,
    losers,
    refused,
    spans_of,
)
from loadmanager.pipeline.ingest.history_files import Bounds, HistoryFile, find_files
from loadmanager.pipeline.ingest.lines import BUNDLES, FILES, LINES, READ
from loadmanager.pipeline.ingest.messages import (
    SHOWN,
    Taken,
    messages_of_files,
    messages_of_lines,
    nothing_there,
)
from loadmanager.pipeline.ingest.parquet_files import (
    PARQUET_FILES,
    parquet_files_of,
    write_parquet_files,
)
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.session import settings_of
from loadmanager.pipeline.tables import (
    BROKER_LOAD,
    BUNDLE_LOAD,
    DUPLICATES,
    KEYS,
    OF_LINES,
    QUARANTINE,
    SPANS,
    parsed_schema,
    with_dates,
)

BATCH_BYTES: Final = 2 << 30
BATCH_FILES: Final = 10_000
"""A batch is committed by itself: a run that dies loses no more than one."""

_SETTINGS: Final = {
    # Files are read as a whole: a task holds one large file or a few small ones.
    "spark.sql.files.maxPartitionBytes": str(32 << 20),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
}
_DRAFTS: Final = "drafts"


def run(work: Work) -> list[str]:
    """Ingest the new files of ``work.history``, and return a summary.

    Raises:
        PipelineError: the directory does not exist, or contains no history.
    """
    if work.history is None:
        raise PipelineError("ingest: no history is given; expected --history DIR")
    history, store = work.history.rstrip("/"), work.store
    with settings_of(work.spark, _SETTINGS):
        store.files.delete(f"{store.out}/{_DRAFTS}")
        read: dict[str, Sequence[int]] = store.files_read()
        found = find_files(store.files, history, read, Bounds(work.since, work.until))
        if not found.has_history:
            raise PipelineError(nothing_there(history, found))
        if not found.new and not store.batches():
            # From now on the tables exist, without rows.
            store.commit(1, {"files": {}, "tables": [], "lines": Taken().lines})
        taken = _take_all(work, list(_batches(found.new)))
        return [*messages_of_files(found), *messages_of_lines(taken)]


def _take_all(work: Work, batches: Sequence[Sequence[HistoryFile]]) -> Taken:
    taken = Taken()
    for place, files in enumerate(batches, start=1):
        # Retention may have deleted some while earlier batches were read.
        there = [one for one in files if place == 1 or work.store.files.exists(one.path)]
        taken += Taken(gone=len(files) - len(there))
        if there:
            taken += _Batch(work, there).take()
        if len(batches) > 1:
            work.print_line(f"batch {place} of {len(batches)} is in the tables")
    return taken


class _Batch:
    """One batch: the content of some files, added to the tables completely or not at all."""

    def __init__(self, work: Work, files: Sequence[HistoryFile]) -> None:
        self._spark = work.spark
        self._store = store = work.store
        self._files = files
        self._number = 1 + max((one.number for one in store.batches()), default=0)
        self._draft = f"{store.out}/{_DRAFTS}/{self._number:06d}"
        self._tables: list[str] = []

    def take(self) -> Taken:
        """Read, write and commit the batch; return the counts of files and lines."""
        write_parquet_files(self._read(), self._draft)
        read = {row["file"] for row in self._part(FILES).select("file").collect()}
        gone = len(self._files) - len(read)
        if not read:
            return Taken(gone=gone)
        lines = self._part(LINES)
        lost = self._lost(lines)
        kept = kept_lines(lines, lost)
        self._take_bundles(lost)
        # Malformed lines have no kind.
        kinds = {
            row["kind"]: row["count"] for row in lines.groupBy("content.kind").count().collect()
        }
        for made in OF_LINES:
            if made.kind in kinds:
                self._put(made.table, made.rows(_parsed(kept, made.kind)))
        self._put(KEYS, keys_of(kept))
        counted = _counted(kinds, lost)
        counted["kept"] = self._store.rows_of(KEYS, [self._number]).count()
        if counted["quarantined"]:
            self._put(QUARANTINE, refused(lines, lost))
        taken = Taken(**counted, gone=gone, doubled=self._doubled())
        self._store.commit(
            self._number,
            {
                "files": {one.name: one.state for one in self._files if one.name in read},
                "tables": self._tables,
                "lines": taken.lines,
            },
        )
        self._store.files.delete(self._draft)
        return taken

    def _read(self) -> DataFrame:
        reader = self._spark.read.format("binaryFile").option("ignoreMissingFiles", "true")
        content = reader.load([literal(one.path) for one in self._files])
        return content.select("path", "content").mapInArrow(parquet_files_of, PARQUET_FILES)

    def _part(self, name: str) -> DataFrame:
        read = StructType([one for one in READ if one.name != "part"])
        draft = f"{self._draft}/part={name}"
        if not self._store.files.exists(draft):
            return self._spark.createDataFrame([], read)
        return self._spark.read.schema(read).parquet(literal(draft))

    def _put(self, table: Table, frame: DataFrame) -> None:
        self._store.put(table, self._number, frame)
        self._tables.append(table.name)

    def _lost(self, lines: DataFrame) -> DataFrame | None:
        """Return the lines that are not kept (see `losers`); None if there are none."""
        found = losers(lines, self._store.batches_of(KEYS))
        if found.isEmpty():
            return None
        # Later steps evaluate it many times.
        found.write.mode("overwrite").parquet(f"{self._draft}/lost")
        return self._spark.read.schema(found.schema).parquet(literal(f"{self._draft}/lost"))

    def _take_bundles(self, lost: DataFrame | None) -> None:
        """Move the files of bundles to their table; they are rewritten only if rows are dropped."""
        draft = f"{self._draft}/part={BUNDLES}"
        if not self._store.files.exists(draft):
            return
        if lost is not None:
            rows = self._spark.read.parquet(literal(draft)).join(
                lost, ["file", "line"], "left_anti"
            )
            self._put(BUNDLE_LOAD, rows)
            return
        place = self._store.place(BUNDLE_LOAD.name, self._number)
        self._store.files.delete(place)
        for folder in self._store.files.names(draft):
            for name in self._store.files.names(f"{draft}/{folder}"):
                parquet = f"{place}/{folder}/{name.removesuffix('.txt')}.parquet"
                self._store.files.rename(f"{draft}/{folder}/{name}", parquet)
        self._tables.append(BUNDLE_LOAD.name)

    def _doubled(self) -> tuple[str, ...]:
        """Write the table of excluded reports; return some of the brokers in it."""
        if BROKER_LOAD.name in self._tables:
            reports = self._store.rows_of(BROKER_LOAD, [self._number])
            self._put(SPANS, spans_of(reports))
        before = [one.number for one in self._store.batches() if SPANS.name in one.tables]
        own = [self._number] if SPANS.name in self._tables else []
        found = duplicate_reports(self._store.rows_of(SPANS, [*before, *own]))
        if found.isEmpty():
            return ()
        self._put(DUPLICATES, found)
        written = self._store.rows_of(DUPLICATES, [self._number])
        rows = written.select("broker").distinct().orderBy("broker").limit(SHOWN + 1).collect()
        return tuple(row["broker"] for row in rows)


def _counted(kinds: Mapping[str | None, int], lost: DataFrame | None) -> dict[str, int]:
    read, faults = sum(kinds.values()), kinds.get(None, 0)
    verdicts: dict[str, int] = {}
    if lost is not None:
        every = lost.groupBy("verdict").count().collect()
        verdicts = {one["verdict"]: one["count"] for one in every}
    return {
        "read": read,
        "quarantined": faults + verdicts.get(CONTRADICTION, 0),
        "duplicate": verdicts.get(DUPLICATE, 0),
    }


def _parsed(kept: DataFrame, kind: str) -> DataFrame:
    """Return the fields of the lines of a kind; they were validated before."""
    lines = kept.where(F.col("content.kind") == kind)
    parsed = F.from_json("content.text", parsed_schema(kind), {"mode": "FAILFAST"})
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
