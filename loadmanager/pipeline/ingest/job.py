"""Writes new files of history to tables; each line once, and all skipped files are reported.

Spark writes Parquet row by row, which takes longer for bundles than reading them; here they are
columns already. A worker returns whole files, and Spark writes them to any file system that it
supports, and only those of tasks that succeeded. Spark has no writer of binary files. The writer
of text writes the content of a row, followed by a separator, without changes. Every Parquet file
ends with the same four bytes: the separator.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DateType, StringType, StructField, StructType

from loadmanager.core.bounds import DAY_MS
from loadmanager.core.history.schema import TRAFFIC
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
from loadmanager.pipeline.ingest.history_files import (
    LARGEST_BYTES,
    Bounds,
    Found,
    HistoryFile,
    find_files,
)
from loadmanager.pipeline.ingest.lines import BUNDLES, FILES, LINES, READ, parts_of
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
SHOWN: Final = 5


PARQUET_FILES: Final = StructType(
    [
        StructField("part", StringType()),
        StructField("date", DateType()),
        StructField("content", BinaryType()),
    ]
)
"""The output of `parquet_files_of`: Parquet files without their last bytes, `SEPARATOR`.

``part`` is a part of `READ`. Rows of ``bundle_load`` have all columns of that table, and file
and line; a file of them has rows of one ``date``. Other parts have no date.
"""

SEPARATOR: Final = "PAR1"

_AT_ONCE_BYTES: Final = 40 << 20
"""Size in memory; on disk it is a quarter of that."""

_SCHEMA: Final = to_arrow_schema(PARQUET_FILES)
_UNIQUE: Final = frozenset(one.name for one in TRAFFIC)
"""Measured rates rarely repeat: a dictionary of them takes time and saves nothing."""


def write_parquet_files(made: "DataFrame", where: str) -> None:
    """Write rows of `PARQUET_FILES` below ``where``, in folders by ``part`` and ``date``."""
    content = made.withColumn("content", made["content"].cast(StringType()))
    writer = content.write.mode("overwrite").partitionBy("part", "date")
    one_a_file = writer.option("lineSep", SEPARATOR).option("maxRecordsPerFile", 1)
    # Settings of Hadoop may enable compression of text.
    one_a_file.option("compression", "none").text(where)


def parquet_files_of(files: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of `PARQUET_FILES` for rows of ``binaryFile`` (``path`` and ``content``)."""
    waiting: dict[str, list[pa.RecordBatch]] = {}
    sizes: dict[str, int] = {}
    for part, rows in parts_of(files):
        waiting.setdefault(part, []).append(rows)
        sizes[part] = sizes.get(part, 0) + rows.nbytes
        if sizes[part] >= _AT_ONCE_BYTES:
            yield from _made(part, waiting.pop(part))
            del sizes[part]
    for part, batches in waiting.items():
        yield from _made(part, batches)


def _made(part: str, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
    batches.clear()
    for date, one in _by_date(_with_namespaces(rows)) if part == BUNDLES else [(None, rows)]:
        row = {"part": part, "date": date, "content": _parquet(one)}
        yield pa.RecordBatch.from_pylist([row], schema=_SCHEMA)


def _with_namespaces(rows: pa.Table) -> pa.Table:
    """Return rows of bundles with the column ``namespace``, computed once for each name."""
    (bundles,) = rows["bundle"].chunks
    cut = pa.array([name.rpartition("/")[0] for name in bundles.dictionary.to_pylist()])
    coded = cut.dictionary_encode()
    of_row = coded.indices.take(bundles.indices)
    namespaces = pa.DictionaryArray.from_arrays(of_row, coded.dictionary)
    return rows.append_column("namespace", namespaces)


def _by_date(rows: pa.Table) -> Iterator[tuple[object, pa.Table]]:
    """Yield the date and the rows of each day, with the column ``at``."""
    at_ms = rows["at_ms"]
    at = at_ms.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    dated = rows.append_column("at", at)
    days = pc.divide(at_ms, DAY_MS).combine_chunks()
    if len(days.unique()) > 1:
        order = pc.sort_indices(days)
        dated, days = dated.take(order), days.take(order)
    ends = pc.run_end_encode(days)
    begin = 0
    for day, end in zip(ends.values.cast(pa.int32()), ends.run_ends.to_pylist(), strict=True):
        yield day.cast(pa.date32()).as_py(), dated.slice(begin, end - begin)
        begin = end


def _parquet(rows: pa.Table) -> bytes:
    """Return a Parquet file without its last bytes."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows,
        sink,
        compression="zstd",
        use_dictionary=[name for name in rows.schema.names if name not in _UNIQUE],
        store_schema=False,
    )
    found = sink.getvalue()
    return bytes(found.slice(0, len(found) - len(SEPARATOR)))


"""The most names listed of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Counts of lines: ``read`` is the sum of the next three.

    ``gone`` files were deleted before they were read. ``doubled`` are some of the brokers that two
    sidecars reported on at once.

    Raises:
        PipelineError: lines were lost or counted twice.
    """

    read: int = 0
    kept: int = 0
    quarantined: int = 0
    duplicate: int = 0
    gone: int = 0
    doubled: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the sum; each of the numbers was counted independently."""
        if self.read != self.kept + self.quarantined + self.duplicate:
            text = ", ".join(f"{count} {name}" for name, count in self.lines.items())
            expected = "read = kept + quarantined + duplicate; this is a fault of the pipeline"
            raise PipelineError(f"ingest: lines: {text}; expected {expected}")

    def __add__(self, other: "Taken") -> "Taken":
        """Return the sum of both; ``other`` is the later one."""
        return Taken(
            read=self.read + other.read,
            kept=self.kept + other.kept,
            quarantined=self.quarantined + other.quarantined,
            duplicate=self.duplicate + other.duplicate,
            gone=self.gone + other.gone,
            doubled=other.doubled or self.doubled,
        )

    @property
    def lines(self) -> dict[str, int]:
        names = ("read", "kept", "quarantined", "duplicate")
        return {name: getattr(self, name) for name in names}


def nothing_there(history: str, found: Found) -> str:
    text = f"{history}: there is no file of history in it"
    if found.foreign:
        text += f", but {_some(found.foreign)}"
    return f"{text}; expected date=*/hour=*/reports-*.jsonl.gz"


def messages_of_files(found: Found) -> Iterator[str]:
    """Yield the number of files of each class, and the names of unexpected ones."""
    yield f"files: {len(found.new)} to be read, {found.known} read before"
    if found.outside:
        yield f"outside of --since and --until, left for later: {found.outside}"
    if found.being_written:
        yield f"being written, left for later: {found.being_written}"
    if found.changed:
        yield f"changed since they were read, and read again: {_some(found.changed)}"
    if found.foreign:
        yield f"not of history, left alone: {_some(found.foreign)}"
    if found.too_large:
        most = f"at most {LARGEST_BYTES >> 20} MiB; [history] roll_mib makes smaller ones"
        yield f"too large to be read: {_some(found.too_large)}; expected {most}"


def messages_of_lines(taken: Taken) -> Iterator[str]:
    if taken.gone:
        yield f"gone before they were read: {taken.gone} files"
    yield (
        f"lines: {taken.read} read = {taken.kept} kept + {taken.quarantined} quarantined + "
        f"{taken.duplicate} duplicate"
    )
    if taken.quarantined:
        yield "the table quarantine has file, line, reason and text of each that was refused"
    if taken.doubled:
        yield (
            f"brokers that two sidecars reported on at once: {_some(taken.doubled)}; "
            "the reports of the one that began later stand, the table doubled has when"
        )


def _some(names: Sequence[str]) -> str:
    many = "more than " if len(names) > SHOWN and isinstance(names, tuple) else ""
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return f"{many}{min(len(names), SHOWN) if many else len(names)}: {shown}"


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
