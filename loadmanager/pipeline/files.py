"""Small files, and whole folders, on any file system that Spark supports, by URL or path."""

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
    """A file or a folder as the file system lists it."""

    path: str
    name: str
    size_bytes: int
    changed_ms: int
    is_folder: bool = False


class Files:
    """What the pipeline does with files by itself; all tables are read and written by Spark.

    Every method raises `PipelineError`, naming the place, if the file system refuses.
    """

    def __init__(self, spark: "SparkSession") -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - Spark's only way to its file systems
        self._path = jvm.org.apache.hadoop.fs.Path
        self._charsets = jvm.java.nio.charset.StandardCharsets
        self._arrays = jvm.org.apache.commons.lang3.ArrayUtils
        self._io = jvm.org.apache.commons.io.IOUtils
        self._conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001 - as above

    def exists(self, where: str) -> bool:
        """Return whether there is anything."""
        with _named_errors(where):
            system, path = self._at(where)
            return bool(system.exists(path))

    def listed(self, folder: str) -> list[StoredFile]:
        """Return what is in ``folder``, by name; nothing if it does not exist."""
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
        """Return the names in ``folder``, in their order; none if it does not exist."""
        return [one.name for one in self.listed(folder)]

    def read(self, where: str) -> str:
        """Return the text of a small file."""
        return self.read_bytes(where).decode()

    def read_bytes(self, where: str) -> bytes:
        """Return the content of a small file."""
        with _named_errors(where):
            system, path = self._at(where)
            stream = system.open(path)
            try:
                return bytes(self._io.toByteArray(stream))
            finally:
                stream.close()

    def write(self, where: str, content: str | bytes) -> None:
        """Put a small file there as a whole, over what was there.

        A reader meanwhile finds the former file, the new one, or, for a moment, none.
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
        """Give a file or folder another name, which is to be free; its parent need not be there."""
        with _named_errors(after):
            system, source = self._at(before)
            _, target = self._at(after)
            system.mkdirs(target.getParent())
            if not system.rename(source, target):
                raise PipelineError(f"{before}: cannot be renamed to {after}; expected it free")

    def delete(self, where: str) -> None:
        """Remove a file, or a folder with all that is in it; there may be none."""
        with _named_errors(where):
            system, path = self._at(where)
            system.delete(path, _YES)

    def _at(self, where: str) -> tuple[Any, Any]:
        path = self._path(where)
        return path.getFileSystem(self._conf), path


def literal(path: str) -> str:
    """Return a path in which Spark's readers see no pattern; its writers never do."""
    return "".join(f"\\{char}" if char in "\\*?[]{}" else char for char in path)


def _read_at_once(statuses: str) -> Iterator[StoredFile]:
    """Read what Hadoop prints of files: a question for each field of each takes minutes."""
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
