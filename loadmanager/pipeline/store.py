"""Where the pipeline's tables are: in batches, each there as a whole or not at all.

A batch is a folder in each table, and counts once its manifest stands in ``batches``: a job
that died is done again under the same number, over whatever it left.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from loadmanager.pipeline.contract import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Java's methods have no keywords.
_YES: Final = True
_NO: Final = False
_MANIFEST: Final = re.compile(r"(\d{6})\.json")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as the file system tells of it."""

    path: str
    size_bytes: int


class Files:
    """Any file system that Spark knows, by URL or path."""

    def __init__(self, spark: "SparkSession") -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - Spark's only door to its file systems
        self._path = jvm.org.apache.hadoop.fs.Path
        self._charsets = jvm.java.nio.charset.StandardCharsets
        self._io = jvm.org.apache.commons.io.IOUtils
        self._conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001 - as above

    def exists(self, where: str) -> bool:
        """Return whether there is anything."""
        path = self._path(where)
        return bool(path.getFileSystem(self._conf).exists(path))

    def every(self, folder: str) -> Iterator[StoredFile]:
        """Yield all files in ``folder`` and below, by their paths.

        Raises:
            PipelineError: there is no such folder.
        """
        path = self._path(folder)
        system = path.getFileSystem(self._conf)
        if not system.exists(path):
            raise PipelineError(f"{folder}: there is no such directory; expected one with history")
        found, remote = [], system.listFiles(path, _YES)
        while remote.hasNext():
            status = remote.next()
            found.append(StoredFile(str(status.getPath().toString()), int(status.getLen())))
        yield from sorted(found, key=lambda one: one.path)

    def names(self, folder: str) -> list[str]:
        """Return the names in ``folder``, none if it does not exist."""
        path = self._path(folder)
        system = path.getFileSystem(self._conf)
        if not system.exists(path):
            return []
        return sorted(str(status.getPath().getName()) for status in system.listStatus(path))

    def read(self, where: str) -> str:
        """Return the text of a small file."""
        path = self._path(where)
        stream = path.getFileSystem(self._conf).open(path)
        try:
            return str(self._io.toString(stream, self._charsets.UTF_8))
        finally:
            stream.close()

    def write(self, where: str, text: str) -> None:
        """Put a small file there as a whole, over what was there."""
        path, draft = self._path(where), self._path(f"{where}.draft")
        system = path.getFileSystem(self._conf)
        stream = system.create(draft, _YES)
        try:
            self._io.write(text, stream, self._charsets.UTF_8)
        finally:
            stream.close()
        system.delete(path, _NO)
        if not system.rename(draft, path):
            raise PipelineError(f"{where}: cannot be written; expected a writable directory")


@dataclass(frozen=True, slots=True)
class Batch:
    """A committed batch: its number and what its manifest tells."""

    number: int
    manifest: Mapping[str, Any]


class Store:
    """The tables under one directory or URL."""

    def __init__(self, spark: "SparkSession", out: str) -> None:
        self._spark = spark
        self.out = out.rstrip("/")
        self.files = Files(spark)

    def batches(self) -> list[Batch]:
        """Return all committed batches, in their order.

        Raises:
            PipelineError: a manifest cannot be read.
        """
        found = []
        for name in self.files.names(f"{self.out}/batches"):
            match = _MANIFEST.fullmatch(name)
            if match:
                where = f"{self.out}/batches/{name}"
                try:
                    manifest = json.loads(self.files.read(where))
                except ValueError as error:
                    raise PipelineError(f"{where}: {error}; expected a manifest in JSON") from None
                found.append(Batch(int(match[1]), manifest))
        return found

    def commit(self, number: int, manifest: Mapping[str, Any]) -> None:
        """Make a batch count."""
        text = json.dumps(manifest, indent=1, sort_keys=True)
        self.files.write(f"{self.out}/batches/{number:06d}.json", text + "\n")

    def put(self, table: str, number: int, frame: "DataFrame", *, by: Sequence[str] = ()) -> None:
        """Write a batch's part of a table, over what an earlier try left."""
        frame.write.mode("overwrite").partitionBy(*by).parquet(self._folder(table, number))

    def table(self, name: str, schema: "StructType | None" = None) -> "DataFrame":
        """Return a table: all committed batches of it.

        Without any, it is empty with the given schema.

        Raises:
            PipelineError: nothing was ingested, and there is no ``schema`` to be empty with.
        """
        folders = [self._folder(name, one.number) for one in self.batches()]
        folders = [one for one in folders if self.files.exists(one)]
        if folders:
            where = f"{self.out}/{name}"
            return self._spark.read.option("basePath", where).parquet(*folders)
        if schema is None:
            told = f"{self.out}: there is no table {name} here"
            raise PipelineError(f"{told}; expected what `loadmanager pipeline ingest` writes")
        return self._spark.createDataFrame([], schema)

    def _folder(self, table: str, number: int) -> str:
        return f"{self.out}/{table}/batch={number:06d}"
