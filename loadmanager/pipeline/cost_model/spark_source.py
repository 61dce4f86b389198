"""The rows in Spark: each pass reads them in Python workers and returns only sums."""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame

from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.cost_model.rows import Rows, Summing, Sums, added
from loadmanager.pipeline.cost_model.spark_rows import LIMIT_COLUMNS, RATE_COLUMNS, USAGE_COLUMNS

_SUMS: Final = "key bigint, shape array<int>, sums binary"
_SCHEMA: Final = pa.schema(
    [("key", pa.int64()), ("shape", pa.list_(pa.int32())), ("sums", pa.binary())]
)


class InSpark:
    """A source of the rows of a frame of `spark_rows.rows`.

    All rows of a unit are in one partition, sorted by block. They are persisted on the disks of
    executors, so memory does not grow with the history. The driver receives sums of units and
    classes, independently of the number of rows.
    """

    def __init__(self, frame: DataFrame, partitions: int) -> None:
        placed = frame.repartition(partitions, "unit").sortWithinPartitions("unit", "block")
        self._frame = placed.persist(StorageLevel.DISK_ONLY)

    def sums(self, summing: Summing) -> Sums:
        """Return the sums of what ``summing`` yields."""
        found = self._frame.mapInArrow(_in_worker(summing), _SUMS).collect()
        return added((row["key"], _array(row["sums"], row["shape"])) for row in found)

    def close(self) -> None:
        self._frame.unpersist()


def _in_worker(
    summing: Summing,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sums = added(summing(_rows(batch) for batch in batches if batch.num_rows))
        for key, found in sums.items():
            columns = [[key], [list(found.shape)], [found.astype(np.float64).tobytes()]]
            arrays = [
                pa.array(column, one.type) for column, one in zip(columns, _SCHEMA, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)

    return work


def _rows(batch: pa.RecordBatch) -> Rows:
    def column(name: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        found: np.ndarray[tuple[int], np.dtype[np.float64]] = batch.column(name).to_numpy(
            zero_copy_only=False
        )
        return found

    def stacked(names: tuple[str, ...]) -> FloatArray:
        return np.column_stack([column(name) for name in names]).astype(np.float64)

    return Rows(
        unit=column("unit").astype(np.int64),
        block=column("block").astype(np.int64),
        level=column("level").astype(np.bool_),
        held_out=column("held_out").astype(np.bool_),
        late=column("late").astype(np.bool_),
        rates=stacked(RATE_COLUMNS),
        usage=stacked(USAGE_COLUMNS),
        limit=stacked(LIMIT_COLUMNS),
    )


def _array(sums: bytes, shape: list[int]) -> FloatArray:
    return np.frombuffer(sums, dtype=np.float64).reshape(shape)
