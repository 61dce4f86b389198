"""From sound lines of history to the tables: one function for each, all of data frames alone.

Every table has ``date`` (of ``at`` in UTC), by which it is partitioned, and the envelope of
the line that a row is from. Times are in UTC.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from loadmanager.core.history.kinds import KINDS
from loadmanager.core.history.schema import Columns

ENVELOPE: Final = ("cluster", "writer", "instance", "seq")

Table = Callable[[DataFrame], DataFrame]


def broker_load(reports: DataFrame) -> DataFrame:
    """Return one row for each report of a broker: usage, limits, traffic and counts."""
    with_counts = _dated(reports).withColumn("bundle_count", F.size("bundles.bundle"))
    return with_counts.drop("bundles")


def bundle_load(reports: DataFrame) -> DataFrame:
    """Return one row for each bundle of each report."""
    kept = ["at", "date", *ENVELOPE, "broker", "started_at_ms", "reported_at_ms", "window_s"]
    rows = _dated(reports).select(*kept, F.inline(_rows("report", "bundles")))
    return rows.withColumn("namespace", F.regexp_extract("bundle", r"^(.*)/", 1))


def rounds(lines: DataFrame) -> DataFrame:
    """Return one row for each round; what it saw of brokers and orders as lists of rows."""
    return (
        _dated(lines)
        .withColumn("brokers", _rows("round", "brokers"))
        .withColumn("in_flight", _rows("round", "in_flight"))
        .withColumn("refusal_count", F.size("refusals.subject"))
        .drop("refusals")
    )


def refusals(lines: DataFrame) -> DataFrame:
    """Return one row for each broker or bundle that a round left alone, with the reason."""
    kept = ["at", "date", *ENVELOPE, "epoch", "round"]
    return _dated(lines).select(*kept, F.inline(_rows("round", "refusals")))


def bundle_averages(lines: DataFrame) -> DataFrame:
    """Return one row for each bundle that the leader had averages of at a base round."""
    kept = ["at", "date", *ENVELOPE, "epoch", "round"]
    return _dated(lines).select(*kept, F.inline(_rows("bundles", "bundles")))


def ticks(lines: DataFrame) -> DataFrame:
    """Return one row for each tick; the reports that were taken up as a list of rows."""
    return _dated(lines).withColumn("taken", _rows("tick", "taken"))


def moves(lines: DataFrame) -> DataFrame:
    """Return one row for each move that was decided."""
    return _dated(lines)


def hand_overs(lines: DataFrame) -> DataFrame:
    """Return one row for each order that came to its end, with its times."""
    times = ("ordered", "released", "acquired")
    ended = _dated(lines)
    for name in times:
        ended = ended.withColumn(name, F.timestamp_millis(f"{name}_at_ms"))
    return ended.drop(*(f"{name}_at_ms" for name in times))


TABLES: Final[Mapping[str, tuple[str, Table]]] = MappingProxyType(
    {
        "broker_load": ("report", broker_load),
        "bundle_load": ("report", bundle_load),
        "rounds": ("round", rounds),
        "refusals": ("round", refusals),
        "bundle_averages": ("bundles", bundle_averages),
        "ticks": ("tick", ticks),
        "moves": ("move", moves),
        "hand_overs": ("hand_over", hand_overs),
        "cuts": ("cut", moves),
        "terms": ("term", moves),
        "lost_reports": ("lost_reports", moves),
        "lost_rounds": ("lost_rounds", moves),
    }
)
"""Each table with the kind of line it is made of."""


def _dated(lines: DataFrame) -> DataFrame:
    at = F.timestamp_millis("at_ms")
    return lines.withColumns({"at": at, "date": F.to_date(at)}).drop("schema", "kind", "at_ms")


def _rows(kind: str, name: str) -> Column:
    """Return columns of a line as a list of rows."""
    columns = next(one for one in KINDS[kind].fields if one.name == name)
    assert isinstance(columns, Columns)  # noqa: S101 - said by the declaration
    fields = [field.name for field in columns.fields]
    zipped = F.arrays_zip(*(F.col(f"{name}.{field}") for field in fields))
    # Spark names what it zips by the last part of a name, but not in all its versions.
    rows = ", ".join(f"{field}: {_sql_type(kind, name, field)}" for field in fields)
    return zipped.cast(f"array<struct<{rows}>>")


def _sql_type(kind: str, name: str, field: str) -> str:
    columns = next(one for one in KINDS[kind].fields if one.name == name)
    assert isinstance(columns, Columns)  # noqa: S101 - said by the declaration
    found = next(one for one in columns.fields if one.name == field)
    return _SQL_TYPES[found.type.value]


_SQL_TYPES: Final = {"text": "string", "count": "bigint", "rate": "double", "flag": "boolean"}
