"""The job ``costs``: costs of messages, bytes, topics and connections by class of brokers.

`docs/costs.md` describes what is estimated and how.

A row is a minute of a broker: the mean of the reports in it, each weighted by the seconds that it
covers. Rates and usage of a report are of the same window, so a minute with one report is as valid
as one with twelve. Minutes without a report are left out.

Moves are natural experiments: a move changes the traffic of two brokers at one time, so the change
of their usage is due to the change of their rates. Time is divided into slots of five minutes:
three before and three after the slot of the move, which is left out. The mean change of brokers of
the same class without moves is subtracted (difference in differences). Rates are measured on both
sides, so several simultaneous moves are as good an experiment as one.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.bounds import MINUTE_MS
from loadmanager.core.scores import RESOURCES, FloatArray
from loadmanager.pipeline.contract import Table, columns
from loadmanager.pipeline.cost_model import results
from loadmanager.pipeline.cost_model.learning import Learned, learn
from loadmanager.pipeline.cost_model.results import Unit, Units, block_minutes
from loadmanager.pipeline.cost_model.row_statistics import THRESHOLD
from loadmanager.pipeline.cost_model.rows import RATES, Rows, Summing, Sums, added
from loadmanager.pipeline.expressions import between, weighted_mean
from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.jobs import Work

HOLD_OUT_EVERY: Final = 5
_MOST_SECONDS: Final = 60.0
_TIMES_USUAL: Final = 20.0
_TIMES_LIMIT: Final = 10.0

RATE_COLUMNS: Final = RATES
USAGE_COLUMNS: Final = tuple(f"{resource}_usage" for resource in RESOURCES)
LIMIT_COLUMNS: Final = tuple(f"{resource}_limit" for resource in RESOURCES)
AMOUNTS: Final = (*RATE_COLUMNS, *USAGE_COLUMNS, *LIMIT_COLUMNS)
UNIT: Final = ("cluster", "broker_class", "broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """The division of time into blocks of ``block_minutes`` and halves at ``middle_minute``."""

    block_minutes: int
    middle_minute: int


def minutes(broker_load: DataFrame) -> DataFrame:
    """Return one row for each minute of each broker in which it reported.

    In: the table ``broker_load``. Out: `UNIT`, ``minute`` (since 1970, by the broker's
    clock) and `AMOUNTS`; a resource that was not measured is null. Reports of unhealthy
    brokers are left out, and reports without the window of their rates.
    """
    known = broker_load.where("healthy and window_s > 0")
    seconds = F.least(F.coalesce("interval_s", "window_s"), F.lit(_MOST_SECONDS))
    weighted = known.select(
        *UNIT,
        F.floor(F.col("reported_at_ms") / MINUTE_MS).alias("minute"),
        F.greatest(seconds, F.lit(1e-3)).alias("seconds"),
        *(F.col(name) for name in RATES if name != "connections"),
        (F.col("producers") + F.col("consumers")).alias("connections"),
        *(
            F.when(F.col(f"{resource}_limit") > 0, F.col(f"{resource}_{amount}")).alias(
                f"{resource}_{amount}"
            )
            for amount in ("usage", "limit")
            for resource in RESOURCES
        ),
    )
    # A report in which a resource was not measured takes no part in that resource's mean.
    means = [weighted_mean(F.col(name), F.col("seconds")).alias(name) for name in AMOUNTS]
    return weighted.groupBy(*UNIT, "minute").agg(*means)


def plausible(of_minutes: DataFrame) -> DataFrame:
    """Return minutes without impossible values.

    A jump of a counter has more leverage than a month of valid minutes, and no residual shows it.
    Minutes with a rate above twenty times the 99th percentile of the class are left out; usage
    above ten times the limit counts as not measured.
    """
    of_class = of_minutes.groupBy("cluster", "broker_class").agg(
        *(F.percentile_approx(name, 0.99, 1000).alias(f"most_{name}") for name in RATES)
    )
    believed = [
        (F.col(f"most_{name}") <= 0) | (F.col(name) <= _TIMES_USUAL * F.col(f"most_{name}"))
        for name in RATES
    ]
    usage = {
        f"{one}_usage": F.when(
            F.col(f"{one}_usage") <= _TIMES_LIMIT * F.col(f"{one}_limit"), F.col(f"{one}_usage")
        )
        for one in RESOURCES
    }
    joined = of_minutes.join(F.broadcast(of_class), ["cluster", "broker_class"])
    sound = joined.where(reduce(Column.__and__, believed))
    return sound.select(*of_minutes.columns).withColumns(usage)


def rows(
    of_minutes: DataFrame, of_changes: DataFrame, units: DataFrame, stretches: Stretches
) -> DataFrame:
    """Return minutes and changes as rows with ``unit``, ``block`` and the masks of `Rows`.

    In: `minutes`, `spark_changes.changes`, and `UNIT` with the number ``unit``, which is broadcast.
    """
    both = of_minutes.withColumn("level", F.lit(True)).unionByName(  # noqa: FBT003 - a value
        of_changes.withColumn("level", F.lit(False))  # noqa: FBT003 - a value
    )
    block = F.floor(F.col("minute") / stretches.block_minutes)
    return both.join(F.broadcast(units), list(UNIT)).select(
        F.col("unit").cast("bigint").alias("unit"),
        block.cast("bigint").alias("block"),
        "level",
        (F.pmod(block, F.lit(HOLD_OUT_EVERY)) == HOLD_OUT_EVERY - 1).alias("held_out"),
        (F.col("minute") >= stretches.middle_minute).alias("late"),
        *(F.col(name).cast("double") for name in AMOUNTS),
    )


_PARTITIONS_PER_CORE: Final = 2
MOST_BROKERS: Final = 10_000
SLOT_MINUTES: Final = 5
BESIDE: Final = 3
_SUMS: Final = "key bigint, shape array<int>, sums binary"
_SCHEMA: Final = pa.schema(
    [("key", pa.int64()), ("shape", pa.list_(pa.int32())), ("sums", pa.binary())]
)


_CLASS: Final = """
    cluster string Name of the cluster.
    broker_class string Class of brokers; empty where none is set.
"""
_RESOURCE: Final = "resource string cpu, memory, direct_memory, bandwidth_in, bandwidth_out."
_INTERVAL: Final = """
    value double The estimate.
    low double Lower end of the 90 % interval.
    high double Upper end of it.
"""

COST_TERMS: Final = Table(
    name="cost_terms",
    job="costs",
    meaning="One row for each term: what one unit of a rate uses of a resource.",
    schema=columns(
        f"""{_CLASS}{_RESOURCE}
        rate string msgs_in_per_s, msgs_out_per_s, bytes_in_per_s, bytes_out_per_s, topics, \
            connections.
        {_INTERVAL.strip()}
        typical_usage double What the class' mean rate costs of the resource.
        verdict string known; vague: a wide interval; entangled: cannot be separated from others; \
            unvaried: never varied within a broker.
        partners string The rates that it cannot be separated from, with commas.
        drift double Change from the first to the last half, as a fraction; null if it is not \
            determined.
        drifted boolean Whether that is more than chance.
        """
    ),
)
COST_QUALITY: Final = Table(
    name="cost_quality",
    job="costs",
    meaning="One row for each class and resource: how well its costs predicted what was held out.",
    schema=columns(
        f"""{_CLASS}{_RESOURCE}
        refused string Why there are no terms; null if there are.
        minutes bigint Minutes of brokers in which it was measured.
        full_minutes bigint Of these, at 90 % of the limit or more: lower bounds alone.
        blocks bigint Stretches of time, of one broker each, that count as independent.
        moves bigint Changes of brokers' bundles that were used as natural experiments.
        held_out_minutes bigint Minutes in stretches that were held out of training.
        mape double Mean absolute error in these, as a fraction.
        baseline_mape double The same error of the rule of traffic shares.
        coverage double How many of these minutes lay in their 90 % interval, a fraction.
        held_out_moves bigint Changes of bundles that were held out.
        move_mape double Mean absolute error of the usage after these, as a fraction.
        baseline_move_mape double The same error of the rule of traffic shares.
        condition double Condition number; above 30 some terms cannot be separated.
        typical_error double Half the 90 % interval of what typical traffic costs, as a fraction \
            of it.
        drift double Change of what typical traffic costs, as a fraction.
        drifted boolean Whether that is more than chance.
        """
    ),
)
BACKGROUNDS: Final = Table(
    name="backgrounds",
    job="costs",
    meaning="One row for each broker and resource: what it uses without any traffic.",
    schema=columns(
        f"""{_CLASS}
        broker string Broker.
        {_RESOURCE}
        {_INTERVAL.strip()}
        minutes bigint Minutes of the broker.
        """
    ),
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


"""The number of slots before and after a move."""

_SLOTS: Final = 2 * BESIDE + 1
_CHANGED: Final = (*RATES, *USAGE_COLUMNS)


def changes(of_minutes: DataFrame, hand_overs: DataFrame) -> DataFrame:
    """Return one row for each broker and slot in which it gained or lost bundles.

    In: `minutes` and the table ``hand_overs``. Out: the columns of the minutes,
    with the differences of rates and usage between after and before; limits are the usage after.
    A broker that did not report in each of the seven slots is left out.
    """
    touched = _touched(hand_overs)
    slots = _slots(of_minutes).join(touched, ["cluster", "broker", "slot"], "left")
    beside = slots.join(F.broadcast(_windows(touched)), ["cluster", "slot"])
    compared = _compared(beside)
    alike = Window.partitionBy("cluster", "broker_class", "event")
    control = {
        name: F.avg(F.when(~F.col("disturbed"), F.col(name))).over(alike) for name in _CHANGED
    }
    freed = {
        name: F.col(name) - F.coalesce(everybody, F.lit(0.0)) for name, everybody in control.items()
    }
    return (
        compared.withColumns(freed)
        .where("moved")
        .withColumn("minute", F.col("event") * SLOT_MINUTES)
        .select(*UNIT, "minute", *_CHANGED, *LIMIT_COLUMNS)
    )


def _touched(hand_overs: DataFrame) -> DataFrame:
    """Return ``cluster, broker, slot, touched``: when brokers gained or lost bundles."""
    done = hand_overs.where("acquired_at_ms is not null")
    slot = F.floor(F.col("acquired_at_ms") / (SLOT_MINUTES * MINUTE_MS)).alias("slot")
    both = F.explode(F.array("source", "target")).alias("broker")
    known = done.select("cluster", both, slot).where("broker is not null").distinct()
    return known.withColumn("touched", F.lit(True))  # noqa: FBT003 - a value


def _windows(touched: DataFrame) -> DataFrame:
    """Return ``cluster, event, slot, after``: the slots around each slot with moves.

    ``after`` is -1 before the slot of the moves, 0 in it and 1 after it.
    """
    beside = [F.lit(offset) for offset in range(-BESIDE, BESIDE + 1)]
    events = touched.select("cluster", F.col("slot").alias("event")).distinct()
    return events.withColumn("offset", F.explode(F.array(*beside))).select(
        "cluster",
        "event",
        (F.col("event") + F.col("offset")).alias("slot"),
        F.sign("offset").alias("after"),
    )


def _slots(of_minutes: DataFrame) -> DataFrame:
    """Return means of slots; the usage of a full broker is null, because it is censored."""
    slot = F.floor(F.col("minute") / SLOT_MINUTES).alias("slot")
    full = {
        resource: F.max(F.col(f"{resource}_usage") / F.col(f"{resource}_limit")) >= THRESHOLD
        for resource in RESOURCES
    }
    means = [F.avg(name).alias(name) for name in RATES]
    usage = [
        F.when(~full[resource], F.avg(f"{resource}_usage")).alias(f"{resource}_usage")
        for resource in RESOURCES
    ]
    return of_minutes.groupBy(*UNIT, slot).agg(*means, *usage)


def _compared(beside: DataFrame) -> DataFrame:
    """Return the change of every broker across every slot with moves, if no slot is missing."""

    def whole(name: str, amount: Column) -> Column:
        return F.when(F.count(name) == _SLOTS, F.sum(amount) / BESIDE)

    touched = F.coalesce("touched", F.lit(False))  # noqa: FBT003 - a value
    changed = [whole(name, F.col(name) * F.col("after")).alias(name) for name in _CHANGED]
    later = [
        whole(usage, F.when(F.col("after") > 0, F.col(usage))).alias(limit)
        for usage, limit in zip(USAGE_COLUMNS, LIMIT_COLUMNS, strict=True)
    ]
    flags = [
        F.max(touched & (F.col("after") == 0)).alias("moved"),
        F.max(touched).alias("disturbed"),
    ]
    found = beside.groupBy(*UNIT, "event").agg(
        F.count("*").alias("slots"), *changed, *later, *flags
    )
    return found.where(F.col("slots") == _SLOTS)


def run(work: Work) -> list[str]:
    """Estimate costs from ingested reports; write the tables.

    Raises:
        PipelineError: nothing was ingested, or there are too many brokers.
    """
    load = between(work.store.table("broker_load"), work.since, work.until)
    # On disk, so that memory does not grow with the history.
    of_minutes = plausible(minutes(load)).persist(StorageLevel.DISK_ONLY)
    try:
        units = _units(of_minutes)
        if not units.every:
            # Costs of former history would be wrong.
            _replace(work, dict.fromkeys((COST_TERMS, COST_QUALITY, BACKGROUNDS), ()), {})
            return ["no report of a broker in the asked-for time: no costs"]
        middle = units.middle_minute
        stretches = Stretches(block_minutes=block_minutes(units.every), middle_minute=middle)
        hand_overs = between(work.store.table("hand_overs"), work.since, work.until)
        of_changes = changes(of_minutes, hand_overs)
        numbered = _numbered(work, units)
        learned = _learned(work, rows(of_minutes, of_changes, numbered, stretches), units)
    finally:
        of_minutes.unpersist()
    return [*_written(work, units, learned, stretches)]


def _units(of_minutes: DataFrame) -> Units:
    """Return the units; their number does not depend on the length of the history."""
    counted = of_minutes.groupBy(*UNIT).agg(
        F.count("*").alias("minutes"),
        F.min("minute").alias("first_minute"),
        F.max("minute").alias("last_minute"),
    )
    found = counted.limit(MOST_BROKERS + 1).collect()
    if len(found) > MOST_BROKERS:
        text = f"there are more than {MOST_BROKERS} brokers"
        raise PipelineError(f"table broker_load: {text}; expected fewer, or choose by --since")
    return Units.of(Unit(**row.asDict()) for row in found)


def _numbered(work: Work, units: Units) -> DataFrame:
    found = [
        (one.cluster, one.broker_class, one.broker, number)
        for number, one in enumerate(units.every)
    ]
    names = ", ".join(f"{name} string" for name in UNIT)
    return work.spark.createDataFrame(found, f"{names}, unit bigint")


def _learned(work: Work, frame: DataFrame, units: Units) -> Learned:
    cores = work.spark.sparkContext.defaultParallelism
    partitions = max(1, min(len(units.every), cores * _PARTITIONS_PER_CORE))
    source = InSpark(frame, partitions)
    try:
        return learn(source, units.class_of)
    finally:
        source.close()


def _written(work: Work, units: Units, learned: Learned, stretches: Stretches) -> Iterable[str]:
    """Write the tables, and yield the summary."""
    _replace(
        work,
        {
            COST_TERMS: results.term_rows(units, learned),
            COST_QUALITY: results.quality_rows(units, learned),
            BACKGROUNDS: results.background_rows(units, learned),
        },
        {"cluster": units.largest_cluster, "block_minutes": stretches.block_minutes},
    )
    yield from results.summary(units, learned)


def _replace(
    work: Work, tables: "dict[Table, Iterable[dict[str, Any]]]", facts: dict[str, Any]
) -> None:
    frames = {
        table: work.spark.createDataFrame(
            [tuple(row[name] for name in table.schema.names) for row in found], table.schema
        )
        for table, found in tables.items()
    }
    work.store.replace("costs", frames, facts)
