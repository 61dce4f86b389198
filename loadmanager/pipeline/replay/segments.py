"""Division of history into segments that can be replayed independently.

A segment begins at a base round and contains the gapless lines of one leader in one term, for some
hours. Lines before the first base round of a gapless stretch belong to no segment.
"""

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.history.schema import Columns
from loadmanager.pipeline.expressions import union
from loadmanager.pipeline.replay.events import AVERAGED, LISTED
from loadmanager.pipeline.tables import columns_of

Tables = Callable[[str], DataFrame]
"""Returns an ingested table by name."""

KEY: Final = ("cluster", "writer", "instance")
"""The key of a numbering of lines."""

EVENT_TABLES: Final[Mapping[str, str]] = {
    "rounds": "round",
    "bundle_averages": "bundles",
    "ticks": "tick",
    "moves": "move",
    "cuts": "cut",
    "hand_overs": "hand_over",
    "tasks": "task",
    "optimality": "optimality",
    "shadows": "shadow",
    "terms": "term",
    "lost_rounds": "lost",
}
"""The tables with lines of leaders: only together their numbers have no gap."""


def index(tables: Tables, segment_s: float) -> DataFrame:
    """Return one row for each line of a leader, with its ``segment``, null for none.

    Further columns are ``kind``, ``epoch``, ``round``, ``at_ms``, and ``bundles_known`` of rounds.
    A segment has the lines of ``segment_s``, and those until the next base round.
    """
    every = [_slim(tables(name), kind) for name, kind in EVENT_TABLES.items()]
    lines = union(every)
    by_seq = Window.partitionBy(*KEY).orderBy("seq")
    gap = (F.col("seq") - F.lag("seq").over(by_seq) > 1) | (F.col("kind") == "lost")
    gaps = F.sum(F.when(gap, 1).otherwise(0)).over(by_seq)
    lines = lines.withColumn("stretch", gaps)
    term = (*KEY, "stretch", "epoch")
    of_round = Window.partitionBy(*term, "round")
    first = F.min(F.when(F.col("kind") == "bundles", F.col("seq"))).over(of_round)
    lines = lines.withColumn("first_bundles", first)
    begins = F.when(F.col("kind") == "bundles", F.col("seq") == F.col("first_bundles")).otherwise(
        F.col("base") & F.col("first_bundles").isNull()
    )
    since_ms = F.col("at_ms") - F.min("at_ms").over(Window.partitionBy(*term))
    slot = F.floor(since_ms / F.lit(segment_s * 1000))
    in_term = Window.partitionBy(*term).orderBy("seq")
    number = F.max(F.when(begins, slot)).over(in_term)
    name = F.concat_ws(" ", *KEY, "epoch", "stretch", number.cast("string"))
    segment = F.when(number.isNotNull() & F.col("epoch").isNotNull(), name)
    return lines.withColumn("segment", segment).select(
        *KEY, "seq", "kind", "epoch", "round", "at_ms", "bundles_known", "segment"
    )


def events(tables: Tables, lines: DataFrame) -> DataFrame:
    """Return the events of each segment as rows, given the ``lines`` of `index`.

    Out: ``segment string, seq bigint, rank int, kind string, body string, names
    array<string>, numbers array<array<double>>``; in the order of ``seq`` and ``rank``
    a report precedes the lines that name it.
    """
    placed = lines.where(F.col("segment").isNotNull()).select(*KEY, "seq", "segment")
    found = [
        _bodies(tables("rounds"), "round", _columns("round", "brokers", "in_flight")),
        _bodies(tables("ticks"), "tick", _columns("tick", "taken")),
        _bodies(tables("moves"), "move", {}),
        _bodies(tables("tasks"), "task", {}),
        _bodies(tables("cuts"), "cut", {}),
    ]
    plain = union(found).join(placed, [*KEY, "seq"]).drop(*KEY)
    nothing = {"names": F.array().cast("array<string>"), "numbers": _no_numbers()}
    return (
        plain.withColumns(nothing)
        .withColumn("rank", F.lit(1))
        .unionByName(_averages(tables, placed))
        .unionByName(_reports(tables, placed))
    )


def _slim(table: DataFrame, kind: str) -> DataFrame:
    columns = [*KEY, "seq", "at_ms"]
    if kind == "bundles":
        table = table.select(*columns, "epoch", "round").distinct()
    wanted = {
        "epoch": "bigint",
        "round": "bigint",
        "base": "boolean",
        "bundles_known": "bigint",
    }
    more = [
        (F.col(name) if name in table.columns else F.lit(None)).cast(form).alias(name)
        for name, form in wanted.items()
    ]
    return table.select(*columns, F.lit(kind).alias("kind"), *more)


def _columns(kind: str, *names: str) -> Mapping[str, Columns]:
    return {name: columns_of(kind, name) for name in names}


def _bodies(table: DataFrame, kind: str, columns: Mapping[str, Columns]) -> DataFrame:
    """Return the fields of a line as JSON, with arrays of rows converted to parallel lists."""
    left_out = {"at", "date", *KEY, "seq", *columns}
    own = [F.col(name) for name in table.columns if name not in left_out]
    lists = [
        F.struct(*(F.col(f"{name}.{one.name}").alias(one.name) for one in each.fields)).alias(name)
        for name, each in columns.items()
    ]
    return table.select(*KEY, "seq", F.lit(kind).alias("kind"), _json(*own, *lists))


def _json(*fields: Column) -> Column:
    return F.to_json(F.struct(*fields), {"ignoreNullFields": "false"}).alias("body")


def _averages(tables: Tables, placed: DataFrame) -> DataFrame:
    """Return the bundles of each base round as one row, in the place of their first line."""
    rows = tables("bundle_averages").join(placed, [*KEY, "seq"])
    grouped = rows.groupBy("segment", "epoch", "round").agg(
        F.min("seq").alias("seq"), _collected(AVERAGED)
    )
    return grouped.select(
        "segment",
        "seq",
        F.lit(1).alias("rank"),
        F.lit("bundles").alias("kind"),
        _json(F.col("epoch"), F.col("round")),
        *_arrays(AVERAGED),
    )


def _reports(tables: Tables, placed: DataFrame) -> DataFrame:
    """Return each report that rounds and ticks of a segment name, before the first of these."""
    named = [
        tables(table)
        .select(*KEY, "seq", F.explode(name).alias("one"))
        .select(*KEY, "seq", "one.broker", "one.reported_at_ms")
        for table, name in (("rounds", "brokers"), ("ticks", "taken"))
    ]
    report = ("cluster", "broker", "reported_at_ms")
    wanted = (
        union(named)
        .join(placed, [*KEY, "seq"])
        .groupBy("segment", *report)
        .agg(F.min("seq").alias("first"))
    )
    known = tables("broker_load").dropDuplicates([*report])
    bundles = tables("bundle_load").groupBy(*KEY, "seq").agg(_collected(LISTED))
    return (
        wanted.join(known, [*report])
        .join(bundles, [*KEY, "seq"], "left")
        .select(
            "segment",
            F.col("first").alias("seq"),
            F.lit(0).alias("rank"),
            F.lit("report").alias("kind"),
            _json(F.col("broker"), F.col("reported_at_ms")),
            *_arrays(LISTED),
        )
    )


def _collected(names: tuple[str, ...]) -> Column:
    doubles = (F.col(name).cast("double").alias(name) for name in names)
    return F.collect_list(F.struct("bundle", *doubles)).alias("items")


def _arrays(names: tuple[str, ...]) -> tuple[Column, Column]:
    none = F.array().cast("array<string>")
    found = F.coalesce(F.col("items.bundle"), none).alias("names")
    numbers = F.array(*(F.col(f"items.{name}") for name in names))
    return found, F.when(F.col("items").isNull(), _no_numbers()).otherwise(numbers).alias("numbers")


def _no_numbers() -> Column:
    return F.array().cast("array<array<double>>")
