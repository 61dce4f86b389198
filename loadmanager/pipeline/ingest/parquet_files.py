"""Writes lines of history as Parquet files within Spark's Python workers.

Spark writes Parquet row by row, which takes longer for bundles than reading them; here they are
columns already. A worker returns whole files, and Spark writes them to any file system that it
supports, and only those of tasks that succeeded.

Spark has no writer of binary files. The writer of text writes the content of a row, followed by a
separator, without changes. Every Parquet file ends with the same four bytes: the separator.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DateType, StringType, StructField, StructType

from loadmanager.core.bounds import DAY_MS
from loadmanager.core.history.schema import TRAFFIC
from loadmanager.pipeline.ingest.lines import BUNDLES, parts_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
