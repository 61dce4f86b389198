"""Where the pipeline's tables are: each there as a whole or not at all.

Ingested tables grow by batches, derived ones are replaced by versions. Both count once a
manifest names them: a job that died is done again, over whatever it left.

    OUT/batches/000001.json          what a batch read, and what became of it
    OUT/TABLE/batch=000001/date=...  its part of an ingested table
    OUT/jobs/JOB/000001.json         which version of a job's tables counts, and its facts
    OUT/TABLE/version=000001/...     that version of a derived table
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DoubleType, IntegerType, StructField, StructType

from loadmanager.core.bounds import TIMES_END_MS
from loadmanager.pipeline.contract import Table
from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.files import Files, literal
from loadmanager.pipeline.ingest.duplicate_reporters import standing
from loadmanager.pipeline.tables import (
    BROKER_LOAD,
    BUNDLE_LOAD,
    DUPLICATES,
    INGESTED,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Made = Callable[[Callable[[str], "DataFrame"]], "DataFrame"]
"""Makes a table of others, which it reads by their names."""

_NUMBERED: Final = re.compile(r"(\d{6,})\.json")
_KEPT_VERSIONS: Final = 2
"""The present one, and the one before it for jobs that began to read it."""

DATES_END: Final[date] = datetime.fromtimestamp(TIMES_END_MS / 1000, UTC).date()
"""Lines of such days are refused; tables that were ingested before they were may have some."""

_OF_REPORTS: Final = frozenset({BROKER_LOAD.name, BUNDLE_LOAD.name})


@dataclass(frozen=True, slots=True)
class Batch:
    """A committed batch: its number and the fields of its manifest, except the files."""

    number: int
    manifest: Mapping[str, Any]

    @property
    def tables(self) -> frozenset[str]:
        """Return the names of the tables that it has rows of."""
        return frozenset(self.manifest["tables"])


class Store:
    """The tables under one directory or URL.

    Raises:
        PipelineError: from every method, naming the place, if what is there is damaged or
            the file system refuses.
    """

    def __init__(self, spark: "SparkSession", out: str) -> None:
        self._spark = spark
        self.out = out.rstrip("/")
        self.files = Files(spark)
        self._batches: dict[str, Batch] = {}

    def table(self, name: str) -> "DataFrame":
        """Return a table that was ingested or derived, with the columns that it promises.

        Of brokers that two sidecars reported on at once, it has the reports that stand.

        Raises:
            PipelineError: the job that makes it never ran; the text names it.
        """
        from loadmanager.pipeline.described import job_of  # noqa: PLC0415 - imports every job

        if name in INGESTED:
            return self._ingested(INGESTED[name])
        made_by = job_of(name)
        for job in [made_by] if made_by else self.files.names(f"{self.out}/jobs"):
            manifest = self._last(f"{self.out}/jobs/{job}")[1]
            if name in manifest.get("tables", {}):
                return self._derived(manifest["tables"][name])
        raise self._never_made(name, made_by)

    def replace(
        self, job: str, frames: Mapping[Table, "DataFrame | Made"], facts: Mapping[str, Any]
    ) -> None:
        """Put all derived tables of a job in the place of its former ones, at once.

        They are written in their order. One may be made of others of the same version that
        were written before it: then its frame is a function that gets a reader of those.

        A reader by `table` sees all of the former or all of the new ones. Frames of the
        former can still be evaluated until the next time; then those are removed.
        """
        folder = f"{self.out}/jobs/{job}"
        number = 1 + self._last(folder)[0]
        tables: dict[str, Mapping[str, Any]] = {}

        def written(name: str) -> "DataFrame":
            return self._derived(tables[name])

        for table, frame in frames.items():
            where = f"{table.name}/version={number:06d}"
            conforming = table.conform(frame(written) if callable(frame) else frame)
            write_rows(conforming, f"{self.out}/{where}", table.by)
            tables[table.name] = {"folder": where, "schema": table.schema.jsonValue()}
        manifest = {"tables": tables, "facts": dict(facts)}
        self.files.write(f"{folder}/{number:06d}.json", _text(manifest))
        self._remove_old(job)

    def adopt(self, job: str, tables: Iterable[Table]) -> None:
        """Let tables be read that a job writes by itself, part by part: OUT/TABLE/batch=*."""
        folder = f"{self.out}/jobs/{job}"
        if not self._last(folder)[0]:
            manifest = {
                one.name: {"folder": one.name, "schema": one.schema.jsonValue()} for one in tables
            }
            self.files.write(f"{folder}/000001.json", _text({"tables": manifest, "facts": {}}))

    def facts(self, job: str) -> Mapping[str, Any] | None:
        """Return what a job noted of its last run, None if it never ran."""
        number, manifest = self._last(f"{self.out}/jobs/{job}")
        return manifest["facts"] if number else None

    def batches(self) -> list[Batch]:
        """Return all committed batches, in their order."""
        folder = f"{self.out}/batches"
        return [self._batch(number, path) for number, path in self._manifests(folder)]

    def files_read(self) -> dict[str, Any]:
        """Return all files that committed batches have read, each as it was found then."""
        found: dict[str, Any] = {}
        for _, path in self._manifests(f"{self.out}/batches"):
            found.update(self._manifest(path)["files"])
        return found

    def place(self, table: str, batch: int) -> str:
        """Return the folder of a batch's part of a table."""
        return f"{self.out}/{table}/batch={batch:06d}"

    def put(self, table: Table, batch: int, frame: "DataFrame") -> None:
        """Write a batch's part of a table, over what an earlier try left."""
        write_rows(table.conform(frame), self.place(table.name, batch), table.by)

    def commit(self, batch: int, manifest: Mapping[str, Any]) -> None:
        """Make a batch count: ``files`` it read, ``tables`` it has rows of, ``lines`` counted."""
        self.files.write(f"{self.out}/batches/{batch:06d}.json", _text(manifest))

    def batches_of(self, table: Table) -> "DataFrame":
        """Return the rows of all committed batches, none if there is none."""
        numbers = [one.number for one in self.batches() if table.name in one.tables]
        return self.rows_of(table, numbers)

    def rows_of(self, table: Table, batches: Iterable[int]) -> "DataFrame":
        """Return the rows that some batches have, which may not be committed yet."""
        folders = [self.place(table.name, number) for number in batches]
        if not folders:
            return self._spark.createDataFrame([], table.schema)
        read = StructType([*table.schema, StructField("batch", IntegerType())])
        frame = self._spark.read.schema(read).option("basePath", f"{self.out}/{table.name}")
        return frame.parquet(*map(literal, folders)).select(*table.schema.names)

    def _ingested(self, table: Table) -> "DataFrame":
        batches = self.batches()
        if not batches:
            raise self._never_made(table.name, table.job)
        last = batches[-1]
        # Each batch reports again of which brokers reports are passed over.
        counting = [last] if table is DUPLICATES else batches
        rows = self.rows_of(table, [one.number for one in counting if table.name in one.tables])
        if table.name in _OF_REPORTS and DUPLICATES.name in last.tables:
            rows = standing(rows, self.rows_of(DUPLICATES, [last.number]))
        return rows.where(F.col("date") < F.lit(DATES_END)) if "date" in table.by else rows

    def _derived(self, content: Mapping[str, Any]) -> "DataFrame":
        schema = StructType.fromJson(content["schema"])
        frame = self._spark.read.schema(schema).parquet(literal(f"{self.out}/{content['folder']}"))
        return frame.select(*schema.names)

    def _never_made(self, name: str, job: str | None) -> PipelineError:
        first = (
            f"`loadmanager pipeline {job}` to be run first" if job else "the job to be run first"
        )
        return PipelineError(f"{self.out}: there is no table {name} yet; expected {first}")

    def _remove_old(self, job: str) -> None:
        """Remove the versions of a job's tables that came before those that are kept."""
        manifests = self._manifests(f"{self.out}/jobs/{job}")
        kept = {f"version={number:06d}" for number, _ in manifests[-_KEPT_VERSIONS:]}
        for name in {name for _, path in manifests for name in self._manifest(path)["tables"]}:
            for version in self.files.names(f"{self.out}/{name}"):
                if version not in kept:
                    self.files.delete(f"{self.out}/{name}/{version}")
        for _, path in manifests[:-_KEPT_VERSIONS]:
            self.files.delete(path)

    def _batch(self, number: int, path: str) -> Batch:
        """Return a batch, whose manifest is read once: it never changes."""
        if path not in self._batches:
            manifest = self._manifest(path)
            self._batches[path] = Batch(
                number, {name: manifest[name] for name in manifest if name != "files"}
            )
        return self._batches[path]

    def _last(self, folder: str) -> tuple[int, Mapping[str, Any]]:
        """Return the number and the content of the last manifest, 0 if there is none."""
        found = self._manifests(folder)
        if not found:
            return 0, {}
        number, path = found[-1]
        return number, self._manifest(path)

    def _manifests(self, folder: str) -> list[tuple[int, str]]:
        names = self.files.names(folder)
        found = (_NUMBERED.fullmatch(name) for name in names)
        return sorted((int(one[1]), f"{folder}/{one[0]}") for one in found if one)

    def _manifest(self, path: str) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = json.loads(self.files.read(path))
        except ValueError as error:
            raise PipelineError(f"{path}: {error}; expected a manifest in JSON") from None
        return found


def write_rows(frame: "DataFrame", where: str, by: tuple[str, ...]) -> None:
    """Write rows as Parquet, over what is there, in folders by some columns."""
    # What was measured hardly ever comes twice: looking it up takes time and saves nothing.
    measured = [one.name for one in frame.schema if isinstance(one.dataType, DoubleType)]
    plain = {f"parquet.enable.dictionary#{name}": "false" for name in measured}
    frame.write.mode("overwrite").options(**plain).partitionBy(*by).parquet(where)


def _text(manifest: Mapping[str, Any]) -> str:
    return json.dumps(manifest, indent=1, sort_keys=True) + "\n"
