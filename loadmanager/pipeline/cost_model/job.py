"""The job ``costs``: costs of messages, bytes, topics and connections by class of brokers.

`docs/costs.md` describes what is estimated and how.
"""

from collections.abc import Iterable
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.pipeline.contract import Table
from loadmanager.pipeline.cost_model import results
from loadmanager.pipeline.cost_model.learning import Learned, learn
from loadmanager.pipeline.cost_model.spark_changes import changes
from loadmanager.pipeline.cost_model.spark_rows import UNIT, Stretches, minutes, plausible, rows
from loadmanager.pipeline.cost_model.spark_source import InSpark
from loadmanager.pipeline.cost_model.spark_tables import BACKGROUNDS, COST_QUALITY, COST_TERMS
from loadmanager.pipeline.cost_model.units import Unit, Units, block_minutes
from loadmanager.pipeline.expressions import between
from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.jobs import Work

_PARTITIONS_PER_CORE: Final = 2
MOST_BROKERS: Final = 10_000


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
            return _nothing(work)
        stretches = _stretches(units)
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


def _stretches(units: Units) -> Stretches:
    middle = units.middle_minute
    return Stretches(block_minutes=block_minutes(units.every), middle_minute=middle)


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


def _nothing(work: Work) -> list[str]:
    """Write empty tables: costs of former history would be wrong."""
    _replace(work, dict.fromkeys((COST_TERMS, COST_QUALITY, BACKGROUNDS), ()), {})
    return ["no report of a broker in the asked-for time: no costs"]


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
