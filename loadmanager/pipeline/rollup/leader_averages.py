"""The leader's averages at the end of the history, as a replay of its last lines has them."""

from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.pipeline.expressions import between
from loadmanager.pipeline.replay.events import AVERAGED, Event
from loadmanager.pipeline.replay.frames import Frames
from loadmanager.pipeline.replay.job import Tables, events, index
from loadmanager.pipeline.replay.spark_tasks import events_in
from loadmanager.pipeline.tables import namespace_of

_EACH_BASE_S: Final = 1e-3
"""Segments so short that each base round begins one."""

_BEFORE: Final = timedelta(days=2)
"""The largest age of a report that counts at a base; in a healthy cluster it is a minute."""

_ENDED: Final = "segment string, bundle string, ticks bigint, " + ", ".join(
    f"{name} double" for name in AVERAGED
)


def latest_averages(tables: Tables) -> DataFrame:
    """Return the averages of all bundles after the last tick of the last term of each cluster.

    The last term is that of the highest epoch. Without ticks the averages are the last recorded
    ones.
    """
    bases = tables("rounds").where("base").groupBy("cluster").agg(F.max("at").alias("at"))
    began = bases.agg(F.min("at")).first()
    since = None if began is None else began[0]

    def lately(name: str) -> DataFrame:
        return between(tables(name), since, None, margin=_BEFORE)

    lines = index(lately, _EACH_BASE_S).where("segment IS NOT NULL")
    last = lines.groupBy("cluster").agg(
        *(F.max_by(name, F.struct("epoch", "seq")).alias(name) for name in ("segment", "writer")),
        F.max("epoch").alias("epoch"),
    )
    of_last = events(lately, lines.join(F.broadcast(last.select("segment")), "segment"))
    in_order = (
        of_last.withColumn("part", F.lit(0))
        .repartition("segment")
        .sortWithinPartitions("segment", "seq", "rank")
    )
    ended = in_order.mapInArrow(_ended, _ENDED).withColumn("namespace", namespace_of("bundle"))
    return ended.join(F.broadcast(last), "segment")


def _ended(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the averages at the end of each segment, of bundles that have a sample."""
    rows = (row for batch in batches for row in events_in(batch))
    for (segment, _), group in groupby(rows, key=itemgetter(0)):
        frames = Frames()
        deque(frames.of(event for _, event in group if _counts(event)), maxlen=0)
        table = frames.averages.table(len(frames.bundles))
        known = np.flatnonzero(table[:, AVERAGED.index("short_samples")] > 0)
        names = [frames.bundles.names[row] for row in known.tolist()]
        columns = {name: table[known, place] for place, name in enumerate(AVERAGED)}
        of_each = {"segment": [segment] * len(known), "bundle": names}
        ticks = np.full(len(known), frames.sampled_since_base, dtype=np.int64)
        yield pa.RecordBatch.from_pydict({**of_each, "ticks": ticks, **columns})


def _counts(event: Event) -> bool:
    """Return whether an event is no round of a simulation, which records no ticks, after a base."""
    return event.kind != "round" or event.body["base"] or event.body["tick"] is not None
