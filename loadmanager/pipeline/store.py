"""The tables of the pipeline below one folder; each write is visible completely or not at all.

Ingested tables grow by batches, derived tables are replaced by versions. Batches and versions are
visible once a manifest names them; the remains of a job that died are overwritten by the next run.

    OUT/batches/000001.json          the files that a batch read, and its counts
    OUT/TABLE/batch=000001/date=...  the rows of a batch of an ingested table
    OUT/jobs/JOB/000001.json         the current version of the tables of a job, and its facts
    OUT/TABLE/version=000001/...     one version of a derived table
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
from loadmanager.pipeline.ingest.dedup import counting_reports
from loadmanager.pipeline.tables import BROKER_LOAD, BUNDLE_LOAD, DUPLICATES, INGESTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Made = Callable[[Callable[[str], "DataFrame"]], "DataFrame"]
"""Makes a table from others, which it reads by name."""

_NUMBERED: Final = re.compile(r"(\d{6,})\.json")
_KEPT_VERSIONS: Final = 2
"""The current one, and the previous one for jobs that still read it."""

DATES_END: Final[date] = datetime.fromtimestamp(TIMES_END_MS / 1000, UTC).date()
"""Lines from this day on are refused; tables of older versions of ingest may contain some."""

_OF_REPORTS: Final = frozenset({BROKER_LOAD.name, BUNDLE_LOAD.name})


@dataclass(frozen=True, slots=True)
class Batch:
    """A committed batch: its number and the fields of its manifest, except the files."""

    number: int
    manifest: Mapping[str, Any]

    @property
    def tables(self) -> frozenset[str]:
        return frozenset(self.manifest["tables"])


class Store:
    """The tables under one directory or URL.

    Raises:
        PipelineError: from every method, with the path, if a manifest is damaged or the file
            system reports an error.
    """

    def __init__(self, spark: "SparkSession", out: str) -> None:
        self._spark = spark
        self.out = out.rstrip("/")
        self.files = Files(spark)
        self._batches: dict[str, Batch] = {}

    def table(self, name: str) -> "DataFrame":
        """Return an ingested or derived table with its declared columns.

        Where two sidecars reported on a broker at once, only the reports that count are included.

        Raises:
            PipelineError: the job that makes the table never ran; the text names the job.
        """
        from loadmanager.pipeline.contract import job_of  # noqa: PLC0415 - imports every job

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
        """Replace all derived tables of a job at once.

        They are written in order. A table may be made from tables of the same version that were
        written before it: then its frame is a function that is given a reader of those.

        A caller of `table` gets all former or all new tables. Frames of the former version can be
        evaluated until the next replacement, which deletes it.
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
        manifests = self._manifests(f"{self.out}/jobs/{job}")
        kept = {f"version={number:06d}" for number, _ in manifests[-_KEPT_VERSIONS:]}
        for name in {name for _, path in manifests for name in self._manifest(path)["tables"]}:
            for version in self.files.names(f"{self.out}/{name}"):
                if version not in kept:
                    self.files.delete(f"{self.out}/{name}/{version}")
        for _, path in manifests[:-_KEPT_VERSIONS]:
            self.files.delete(path)

    def facts(self, job: str) -> Mapping[str, Any] | None:
        """Return the facts that a job stored with its last run; None if it never ran."""
        number, manifest = self._last(f"{self.out}/jobs/{job}")
        return manifest["facts"] if number else None

    def batches(self) -> list[Batch]:
        folder = f"{self.out}/batches"
        return [self._batch(number, path) for number, path in self._manifests(folder)]

    def files_read(self) -> dict[str, Any]:
        """Return the files that committed batches have read, each with its state at that time."""
        found: dict[str, Any] = {}
        for _, path in self._manifests(f"{self.out}/batches"):
            found.update(self._manifest(path)["files"])
        return found

    def place(self, table: str, batch: int) -> str:
        return f"{self.out}/{table}/batch={batch:06d}"

    def put(self, table: Table, batch: int, frame: "DataFrame") -> None:
        """Write the rows of a batch in a table, over the remains of an earlier attempt."""
        write_rows(table.conform(frame), self.place(table.name, batch), table.by)

    def commit(self, batch: int, manifest: Mapping[str, Any]) -> None:
        """Commit a batch: the ``files`` read, the ``tables`` with rows, the counts of ``lines``."""
        self.files.write(f"{self.out}/batches/{batch:06d}.json", _text(manifest))

    def batches_of(self, table: Table) -> "DataFrame":
        numbers = [one.number for one in self.batches() if table.name in one.tables]
        return self.rows_of(table, numbers)

    def rows_of(self, table: Table, batches: Iterable[int]) -> "DataFrame":
        """Return the rows of some batches, which need not be committed yet."""
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
        # Each batch lists again all reports that do not count.
        counting = [last] if table is DUPLICATES else batches
        rows = self.rows_of(table, [one.number for one in counting if table.name in one.tables])
        if table.name in _OF_REPORTS and DUPLICATES.name in last.tables:
            rows = counting_reports(rows, self.rows_of(DUPLICATES, [last.number]))
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

    def _batch(self, number: int, path: str) -> Batch:
        """Return a batch; its manifest never changes and is read once."""
        if path not in self._batches:
            manifest = self._manifest(path)
            self._batches[path] = Batch(
                number, {name: manifest[name] for name in manifest if name != "files"}
            )
        return self._batches[path]

    def _last(self, folder: str) -> tuple[int, Mapping[str, Any]]:
        """Return number and content of the last manifest; the number is 0 if there is none."""
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
    """Write rows as Parquet, partitioned by some columns, over existing files."""
    # Measured values rarely repeat: a dictionary of them takes time and saves nothing.
    measured = [one.name for one in frame.schema if isinstance(one.dataType, DoubleType)]
    plain = {f"parquet.enable.dictionary#{name}": "false" for name in measured}
    frame.write.mode("overwrite").options(**plain).partitionBy(*by).parquet(where)


def _text(manifest: Mapping[str, Any]) -> str:
    return json.dumps(manifest, indent=1, sort_keys=True) + "\n"
