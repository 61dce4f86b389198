"""Small files and folders on any file system that Spark supports, by URL or path."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError

from loadmanager.pipeline.failures import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Java's methods have no keywords.
_YES: Final = True
_NO: Final = False
_STATUS: Final = re.compile(
    r"FileStatus\{path=(?P<path>[^;]*); isDirectory=(?P<folder>true|false); "
    r"(?:length=(?P<size>\d+); )?[^{}]*?modification_time=(?P<changed>\d+);"
)


@dataclass(frozen=True, slots=True)
class StoredFile:
    path: str
    name: str
    size_bytes: int
    changed_ms: int
    is_folder: bool = False


class Files:
    """Access to files other than tables, which Spark reads and writes.

    Every method raises `PipelineError` with the path if the file system reports an error.
    """

    def __init__(self, spark: "SparkSession") -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - Spark's only way to its file systems
        self._path = jvm.org.apache.hadoop.fs.Path
        self._arrays = jvm.org.apache.commons.lang3.ArrayUtils
        self._io = jvm.org.apache.commons.io.IOUtils
        self._conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001 - as above

    def exists(self, where: str) -> bool:
        with _named_errors(where):
            system, path = self._at(where)
            return bool(system.exists(path))

    def listed(self, folder: str) -> list[StoredFile]:
        """Return the entries of ``folder`` in order of name; none if it does not exist."""
        with _named_errors(folder):
            system, path = self._at(folder)
            if not system.exists(path):
                return []
            statuses = system.listStatus(path)
            found = list(_read_at_once(str(self._arrays.toString(statuses))))
            if len(found) != len(statuses):
                found = [_read_one(one) for one in statuses]
        return sorted(found, key=lambda one: one.name)

    def names(self, folder: str) -> list[str]:
        """Return the names in ``folder`` in order; none if it does not exist."""
        return [one.name for one in self.listed(folder)]

    def read(self, where: str) -> str:
        return self.read_bytes(where).decode()

    def read_bytes(self, where: str) -> bytes:
        with _named_errors(where):
            system, path = self._at(where)
            stream = system.open(path)
            try:
                return bytes(self._io.toByteArray(stream))
            finally:
                stream.close()

    def write(self, where: str, content: str | bytes) -> None:
        """Replace a small file as a whole.

        A concurrent reader finds the former file, the new one or, briefly, none.
        """
        data = content.encode() if isinstance(content, str) else content
        with _named_errors(where):
            system, path = self._at(where)
            _, draft = self._at(f"{where}.draft")
            stream = system.create(draft, _YES)
            try:
                stream.write(bytearray(data))
            finally:
                stream.close()
            system.delete(path, _NO)
            if not system.rename(draft, path):
                raise PipelineError(f"{where}: cannot be written; expected a writable directory")

    def rename(self, before: str, after: str) -> None:
        """Rename a file or folder; ``after`` must not exist, and its parent is created."""
        with _named_errors(after):
            system, source = self._at(before)
            _, target = self._at(after)
            system.mkdirs(target.getParent())
            if not system.rename(source, target):
                raise PipelineError(f"{before}: cannot be renamed to {after}; expected it free")

    def delete(self, where: str) -> None:
        """Delete a file or a folder with its content; it may be missing."""
        with _named_errors(where):
            system, path = self._at(where)
            system.delete(path, _YES)

    def _at(self, where: str) -> tuple[Any, Any]:
        path = self._path(where)
        return path.getFileSystem(self._conf), path


def literal(path: str) -> str:
    """Return ``path`` with glob characters escaped, as Spark's readers (not writers) need it."""
    return "".join(f"\\{char}" if char in "\\*?[]{}" else char for char in path)


def _read_at_once(statuses: str) -> Iterator[StoredFile]:
    """Parse the text that Hadoop prints of files: a call per field and file would take minutes."""
    for one in _STATUS.finditer(statuses):
        path = one["path"]
        yield StoredFile(
            path=path,
            name=path.rpartition("/")[2],
            size_bytes=int(one["size"] or 0),
            changed_ms=int(one["changed"]),
            is_folder=one["folder"] == "true",
        )


def _read_one(status: Any) -> StoredFile:
    return StoredFile(
        path=str(status.getPath().toString()),
        name=str(status.getPath().getName()),
        size_bytes=int(status.getLen()),
        changed_ms=int(status.getModificationTime()),
        is_folder=bool(status.isDirectory()),
    )


@contextlib.contextmanager
def _named_errors(where: str) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        cause = str(error.java_exception.toString())
        expected = "expected a place that is whole, allowed, and of a kind that Spark supports"
        raise PipelineError(f"{where}: {cause}; {expected}") from None
