"""History to tables: only files that are new, each line once, nothing left out in silence."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import LongType, StringType, StructField, StructType

from loadmanager.core.errors import InvalidName
from loadmanager.core.history.files import FileName
from loadmanager.core.history.schema import Stream
from loadmanager.pipeline.contract import PipelineError
from loadmanager.pipeline.lines import (
    QUARANTINE,
    first_numbers,
    judged,
    kinds_of,
    parsed,
    read_raw,
    refused,
    taken,
)
from loadmanager.pipeline.store import Batch, Store, StoredFile
from loadmanager.pipeline.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINES: Final = StructType(
    [
        StructField("stream", StringType()),
        StructField("writer", StringType()),
        StructField("instance", StringType()),
        StructField("seq", LongType()),
        StructField("kind", StringType()),
    ]
)
"""Every line that is in the tables, once: what duplicates are known by."""

_KEY: Final = ["writer", "instance", "seq"]
_UNPARTITIONED: Final = frozenset({"quarantine", "lines"})


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
            read=self.read + other.read,
            kept=self.kept + other.kept,
            quarantined=self.quarantined + other.quarantined,
            duplicate=self.duplicate + other.duplicate,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The files of a history directory: to be read, read before, being written, foreign.

    ``changed`` were read before and have another size now, which whole files never get.
    """

    new: dict[Stream, list[StoredFile]] = field(default_factory=dict)
    known: int = 0
    being_written: int = 0
    foreign: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """What one run did; ``batch`` is None if there was nothing new."""

    batch: int | None
    found: Found
    totals: Totals


def find_files(every: Iterator[StoredFile], history: str, batches: Sequence[Batch]) -> Found:
    """Sort the files under ``history`` into those that are to be read and all others."""
    read = {name: size for batch in batches for name, size in batch.manifest["files"].items()}
    found, known, being_written = Found(), 0, 0
    for one in every:
        name = _relative(one.path, history)
        told = _file_name(name)
        if told is None:
            if not _hidden(name):
                found.foreign.append(name)
        elif told.is_open:
            being_written += 1
        elif name not in read:
            found.new.setdefault(told.stream, []).append(one)
        elif read[name] == one.size_bytes:
            known += 1
        else:
            found.changed.append(name)
    return Found(
        new=found.new,
        known=known,
        being_written=being_written,
        foreign=found.foreign,
        changed=found.changed,
    )


def _relative(path: str, history: str) -> str:
    """Return a file's name within the history, whatever scheme is written before it."""
    bare = re.compile(r"^[a-z0-9]+:(//[^/]*)?")
    root = bare.sub("", history).rstrip("/")
    return bare.sub("", path).rpartition(f"{root}/")[2]


def _file_name(name: str) -> FileName | None:
    try:
        return FileName.parse(name.rpartition("/")[2])
    except InvalidName:
        return None


def _hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith((".", "_"))


class Ingest:
    """One run of the job: the history at ``history`` into the tables of ``store``."""

    def __init__(self, spark: "SparkSession", history: str, store: Store) -> None:
        self._spark = spark
        self._history = history
        self._store = store

    def run(self) -> Ingested:
        """Read what is new, and commit it as one batch.

        Raises:
            PipelineError: there is no such directory, no file of history in it, or a
                manifest is damaged.
        """
        batches = self._store.batches()
        found = find_files(self._store.files.every(self._history), self._history, batches)
        if not found.new:
            if not found.known and not found.being_written:
                told = f"{self._history}: there is no file of history in it"
                raise PipelineError(f"{told}; expected date=*/hour=*/reports-*.jsonl.gz")
            return Ingested(batch=None, found=found, totals=Totals())
        number = 1 + max((batch.number for batch in batches), default=0)
        totals = Totals()
        for stream, files in found.new.items():
            totals += self._stream(number, stream, [one.path for one in files])
        self._store.commit(number, self._manifest(found, totals))
        return Ingested(batch=number, found=found, totals=totals)

    def _stream(self, number: int, stream: Stream, files: Sequence[str]) -> Totals:
        staged, spoilt = self._staged(number, stream, files)
        lines = judged(staged, stream)
        keys = self._keys(lines, stream).persist()
        bad = refused(lines, stream, first_numbers(staged)).unionByName(spoilt)
        try:
            self._store.put(f"quarantine_{stream.value}", number, bad)
            self._store.put(f"lines_{stream.value}", number, keys.where("fresh").drop("fresh"))
            for name, (kind, make) in TABLES.items():
                if kind in kinds_of(stream):
                    fresh = keys.where(F.col("fresh") & (F.col("kind") == kind)).select(*_KEY)
                    rows = make(_once(taken(lines, kind)).join(fresh, _KEY, "left_semi"))
                    self._store.put(name, number, rows, by=["date"])
            return self._totals(lines, keys, spoilt)
        finally:
            keys.unpersist()

    def _staged(
        self, number: int, stream: Stream, files: Sequence[str]
    ) -> tuple[DataFrame, DataFrame]:
        """Return the parsed lines of all files, and a line of quarantine for each spoilt one."""
        place = f"staged_{stream.value}"
        try:
            self._store.put(place, number, parsed(read_raw(self._spark, files), stream))
            spoilt: list[tuple[str, int, str, str]] = []
        except PySparkException:
            faults = spoilt_files(self._spark, files)
            if not faults:
                raise
            raw = read_raw(self._spark, files, spoilt=True)
            self._store.put(place, number, parsed(raw, stream))
            spoilt = [(file, 0, fault, "") for file, fault in faults]
        staged = self._store.draft(place, number)
        return staged, self._spark.createDataFrame(spoilt, QUARANTINE)

    def _keys(self, lines: DataFrame, stream: Stream) -> DataFrame:
        """Return the sound lines, each once, and whether it is ``fresh``: in no earlier batch."""
        sound = [
            taken(lines, kind).select(*_KEY, F.lit(kind).alias("kind")) for kind in kinds_of(stream)
        ]
        here = reduce(DataFrame.unionByName, sound).dropDuplicates(_KEY)
        before = self._store.table(f"lines_{stream.value}", LINES).select(*_KEY)
        known = before.withColumn("known", F.lit(1))
        return (
            here.join(known, _KEY, "left")
            .withColumn("fresh", F.col("known").isNull())
            .withColumn("stream", F.lit(stream.value))
            .drop("known")
        )

    def _totals(self, lines: DataFrame, keys: DataFrame, spoilt: DataFrame) -> Totals:
        counted = lines.agg(
            F.count("*").alias("read"), F.count("fault").alias("quarantined")
        ).first()
        assert counted is not None  # noqa: S101 - an aggregate without groups has a row
        kept = keys.where("fresh").count()
        faults = spoilt.count()
        return Totals(
            read=counted["read"] + faults,
            kept=kept,
            quarantined=counted["quarantined"] + faults,
            duplicate=counted["read"] - counted["quarantined"] - kept,
        )

    def _manifest(self, found: Found, totals: Totals) -> dict[str, Any]:
        files = {
            _relative(one.path, self._history): one.size_bytes
            for some in found.new.values()
            for one in some
        }
        return {
            "history": self._history,
            "files": files,
            "totals": {
                "read": totals.read,
                "kept": totals.kept,
                "quarantined": totals.quarantined,
                "duplicate": totals.duplicate,
            },
        }


def _once(lines: DataFrame) -> DataFrame:
    """Return each line once: of copies, which are equal, any."""
    first = Window.partitionBy(*_KEY).orderBy("at_ms")
    return lines.withColumn("_copy", F.row_number().over(first)).where("_copy = 1").drop("_copy")
