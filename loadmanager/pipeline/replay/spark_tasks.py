"""Distribution of segments and combinations over Spark's tasks."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
)

from loadmanager.pipeline.contract import column, columns
from loadmanager.pipeline.replay.events import Event
from loadmanager.pipeline.replay.measures import Line
from loadmanager.pipeline.replay.segment_replay import SegmentReplay

if TYPE_CHECKING:
    import pyarrow as pa

TASKS_PER_CORE: Final = 4
"""Enough tasks that no core is idle for long at the end."""

_BUNDLES_A_ROUND_COSTS: Final = 500
"""The measured fixed cost of a round, in the cost of bundles."""

_LINES_PER_BATCH: Final = 1000
"""Rows per output batch of a task."""


_TYPES: Final[Mapping[object, DataType]] = {
    int: LongType(),
    float: DoubleType(),
    str: StringType(),
    bool: BooleanType(),
    bool | None: BooleanType(),
    Sequence[float] | None: ArrayType(DoubleType()),
}

LINES: Final = columns(
    "segment string The stretch of history that it is of.",
    (
        column(
            one.name,
            IntegerType() if one.name == "combination" else _TYPES[one.type],
            one.metadata["meaning"],
        )
        for one in fields(Line)
    ),
)
"""The columns of a `Line`, and its segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSplit:
    """The division of the work: a task is a segment and a part of the combinations."""

    segments: int
    parts: int

    @property
    def tasks(self) -> int:
        return self.segments * self.parts


def task_split(segments: int, combinations: int, cores: int) -> TaskSplit:
    """Return the division of the combinations of a segment into parts.

    Each part reads its segment, so there are only as many parts as keep all cores busy.
    """
    wanted = math.ceil(TASKS_PER_CORE * cores / max(segments, 1))
    return TaskSplit(segments=segments, parts=max(1, min(wanted, combinations)))


def tasks_of(lines: DataFrame, parts: int) -> DataFrame:
    """Return one row for each task: ``segment``, ``part``, ``task`` (number, longest first)."""
    rounds = lines.where((F.col("kind") == "round") & F.col("segment").isNotNull())
    sizes = rounds.groupBy("segment").agg(
        F.sum(F.col("bundles_known") + F.lit(_BUNDLES_A_ROUND_COSTS)).alias("size")
    )
    each = sizes.withColumn("part", F.explode(F.sequence(F.lit(0), F.lit(parts - 1))))
    # One partition: there are only some tasks per day of history.
    order = Window.partitionBy(F.lit(0)).orderBy(F.desc("size"), "segment", "part")
    return each.select("segment", "part", (F.row_number().over(order) - 1).alias("task"))


def replayed(
    events: DataFrame, tasks: DataFrame, how: TaskSplit, replay: SegmentReplay
) -> DataFrame:
    """Return the `LINES` of all segments in all combinations of ``replay``."""
    if not how.segments:
        return events.sparkSession.createDataFrame([], LINES)
    shared = events.join(F.broadcast(tasks), "segment")
    apart = shared.repartitionById(how.tasks, F.col("task").cast("int"))
    ordered = apart.sortWithinPartitions("task", "seq", "rank")
    return ordered.mapInArrow(SegmentTask(replay, how.parts), LINES)


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """The function of a task: replays a segment with a part of the combinations."""

    replay: SegmentReplay
    parts: int

    def __call__(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        rows = (row for batch in batches for row in events_in(batch))
        for (segment, part), group in groupby(rows, key=itemgetter(0)):
            mine = [one for one in self.replay.combinations if one.number % self.parts == part]
            replay = replace(self.replay, combinations=mine, measure_recorded=part == 0)
            lines = replay.lines(segment, (event for _, event in group))
            while some := list(islice(lines, _LINES_PER_BATCH)):
                yield _batch(segment, some)


def events_in(batch: "pa.RecordBatch") -> Iterator[tuple[tuple[str, int], Event]]:
    plain = (batch[name].to_pylist() for name in ("segment", "part", "kind", "body"))
    names, numbers = batch["names"], batch["numbers"]
    for row, (segment, part, kind, body) in enumerate(zip(*plain, strict=True)):
        fields: Mapping[str, Any] = json.loads(body)
        listed = names[row].values
        if not len(listed):
            yield (segment, part), Event(kind, fields)
            continue
        inner = numbers[row].values
        table = inner.flatten().to_numpy(zero_copy_only=False).reshape(len(inner), -1).T
        event = Event(kind, fields, tuple(listed.to_pylist()), np.ascontiguousarray(table))
        yield (segment, part), event


def _batch(segment: str, lines: list[Line]) -> "pa.RecordBatch":
    import pyarrow as pa  # noqa: PLC0415 - only tasks need it
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - the same

    rows = [{"segment": segment, **asdict(one)} for one in lines]
    return pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(LINES))
