"""The tables that ingest makes of history, and how their rows are made of lines.

Every table has the envelope of the line that a row comes from, ``at`` (``at_ms`` as a timestamp)
and ``date`` (of ``at`` in UTC), by which it is partitioned.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from loadmanager.core.bounds import DAY_MS
from loadmanager.core.history.schema import ENVELOPE, KINDS, Columns, Field, Type
from loadmanager.pipeline.contract import Table, column, columns

_TYPES: Final[dict[Type, DataType]] = {
    Type.TEXT: StringType(),
    Type.COUNT: LongType(),
    Type.TIME: LongType(),
    Type.RATE: DoubleType(),
    Type.FLAG: BooleanType(),
}


def line_schema(kind: str) -> StructType:
    return StructType([_field(one) for one in (*ENVELOPE, *KINDS[kind].fields)])


def columns_of(kind: str, name: str) -> Columns:
    """Return the group of parallel lists of that name in a line of ``kind``."""
    found = next(one for one in KINDS[kind].fields if one.name == name)
    if not isinstance(found, Columns):
        raise TypeError(f"{kind}.{name} is no columns")
    return found


def fields_of(kind: str) -> tuple[StructField, ...]:
    """Return the fields of a line except its groups of lists."""
    return plain(one for one in KINDS[kind].fields if isinstance(one, Field))


def plain(fields: Iterable[Field]) -> tuple[StructField, ...]:
    return tuple(_field(one) for one in fields)


def row_of(columns: Columns) -> StructType:
    return StructType([column(one.name, _TYPES[one.type], one.meaning) for one in columns.fields])


def _field(one: Field | Columns) -> StructField:
    if isinstance(one, Columns):
        lists = [
            column(each.name, ArrayType(_TYPES[each.type]), each.meaning) for each in one.fields
        ]
        return column(one.name, StructType(lists), one.meaning)
    kind = _TYPES[one.type]
    return column(one.name, ArrayType(kind) if one.listed else kind, one.meaning)


_ENVELOPE: Final = ("cluster", "writer", "instance", "seq")
_REPORT: Final = ("broker", "broker_class", "reported_at_ms", "interval_s", "window_s")

_BEGINNING: Final = (
    *columns(
        """
        at timestamp When it happened, in UTC.
        date date The day of it in UTC.
        """
    ),
    *plain(one for one in ENVELOPE if one.name in {"at_ms", *_ENVELOPE}),
)


def _table(name: str, meaning: str, *fields: StructField) -> Table:
    return Table(
        name=name,
        job="ingest",
        meaning=meaning,
        schema=StructType([*_BEGINNING, *fields]),
        by=("date",),
    )


def _some(kind: str, *names: str) -> tuple[StructField, ...]:
    return tuple(one for one in fields_of(kind) if one.name in names)


def _rows(kind: str, name: str) -> StructField:
    found = columns_of(kind, name)
    return column(name, ArrayType(row_of(found)), found.meaning)


BROKER_LOAD: Final = _table(
    "broker_load",
    "One row for each load report of a broker.",
    *fields_of("report"),
    *columns("bundle_count bigint Bundles that the report lists."),
)
BUNDLE_LOAD: Final = _table(
    "bundle_load",
    "One row for each bundle of each load report.",
    *_some("report", *_REPORT),
    *columns("namespace string tenant/namespace of the bundle."),
    *row_of(columns_of("report", "bundles")),
)
ROUNDS: Final = _table(
    "rounds",
    "One row for each round of a leader; what it refused is in the table refusals.",
    *fields_of("round"),
    _rows("round", "brokers"),
    _rows("round", "in_flight"),
)
REFUSALS: Final = _table(
    "refusals",
    "One row for each broker or bundle that a round left alone, with the reason.",
    *_some("round", "epoch", "round"),
    *row_of(columns_of("round", "refusals")),
)
BUNDLE_AVERAGES: Final = _table(
    "bundle_averages",
    "One row for each bundle that the leader had averages of at a base round.",
    *_some("bundles", "epoch", "round", "tick"),
    *row_of(columns_of("bundles", "bundles")),
)
TICKS: Final = _table(
    "ticks",
    "One row for each tick of a leader.",
    *fields_of("tick"),
    _rows("tick", "taken"),
)


QUARANTINE: Final = Table(
    name="quarantine",
    job="ingest",
    meaning="One row for each line that was not taken, and why.",
    schema=columns(
        """
        file string The file below the history directory.
        line bigint Its line, from 1; for a file that ends too early, where it ends.
        reason string What was found, and what was expected.
        text string The line's first 2,000 characters.
        """
    ),
)
KEYS: Final = Table(
    name="lines",
    job="ingest",
    meaning="One row for each line that is in the tables: what a second one is known by.",
    schema=columns(
        "stream string reports or rounds: each is numbered by itself.",
        plain(one for one in ENVELOPE if one.name in {"writer", "instance", "seq"}),
        """
        kind string Kind of the line.
        digest bigint Of the line's bytes: copies have the same.
        file string The file that it was read from.
        line bigint Number of its line in that file, from 1.
        """,
    ),
)
SPANS: Final = Table(
    name="spans",
    job="ingest",
    meaning="From when to when a sidecar reported on a broker, within a batch.",
    schema=columns(
        _some("report", "broker"),
        plain(one for one in ENVELOPE if one.name in {"cluster", "writer", "instance"}),
        _some("report", "started_at_ms"),
        """
        first_ms bigint When the first report was made.
        last_ms bigint When the last report was made.
        """,
    ),
)
DUPLICATES: Final = Table(
    name="doubled",
    job="ingest",
    meaning="Reports that are passed over: another sidecar reported on the broker as well.",
    schema=columns(
        SPANS.schema.fields[:4],
        """
        for_instance string Instance that began later: its reports count.
        from_ms bigint When the passed-over reports begin.
        until_ms bigint When they end, inclusive.
        """,
    ),
)


@dataclass(frozen=True, slots=True)
class FromLines:
    """A table, and the kind of line that it is made of.

    A line is one row, with its lists as arrays of rows; or, with ``inlined``, one row for each
    item of that list.
    """

    table: Table
    kind: str
    inlined: str = ""

    def rows(self, lines: DataFrame) -> DataFrame:
        """Return the rows of parsed lines; `parts_of` counted and removed bundles of reports."""
        if self.inlined:
            items = row_of(columns_of(self.kind, self.inlined)).names
            own = [one for one in self.table.schema.names if one not in items]
            return lines.select(*own, F.inline(_zipped(self.kind, self.inlined)))
        lists = [one.name for one in KINDS[self.kind].fields if isinstance(one, Columns)]
        arrays = {
            name: _zipped(self.kind, name) for name in lists if name in self.table.schema.names
        }
        return lines.withColumns(arrays) if arrays else lines


def _as_it_is(name: str, kind: str) -> FromLines:
    return FromLines(_table(name, KINDS[kind].meaning, *fields_of(kind)), kind)


OF_LINES: Final = (
    FromLines(BROKER_LOAD, "report"),
    FromLines(ROUNDS, "round"),
    FromLines(REFUSALS, "round", "refusals"),
    _as_it_is("optimality", "optimality"),
    _as_it_is("shadows", "shadow"),
    FromLines(BUNDLE_AVERAGES, "bundles", "bundles"),
    FromLines(TICKS, "tick"),
    _as_it_is("moves", "move"),
    _as_it_is("hand_overs", "hand_over"),
    _as_it_is("tasks", "task"),
    _as_it_is("cuts", "cut"),
    _as_it_is("terms", "term"),
    _as_it_is("lost_reports", "lost_reports"),
    _as_it_is("lost_rounds", "lost_rounds"),
)
"""All tables except ``bundle_load``, whose rows are made where lines are read."""

INGESTED: Final[Mapping[str, Table]] = MappingProxyType(
    {
        one.name: one
        for one in (
            BUNDLE_LOAD,
            QUARANTINE,
            DUPLICATES,
            *(made.table for made in OF_LINES),
        )
    }
)
"""The ingested tables by name."""


def parsed_schema(kind: str) -> StructType:
    """Return the schema of the JSON of a line in the output of `parts_of`."""
    schema = line_schema(kind)
    if kind != "report":
        return schema
    kept = [one for one in schema if one.name != "bundles"]
    return StructType([*kept, BROKER_LOAD.schema["bundle_count"]])


def with_dates(lines: DataFrame) -> DataFrame:
    """Return lines with ``at`` and ``date``; lines with times beyond all dates were refused."""
    at_ms = F.col("at_ms")
    return lines.withColumns(
        {
            "at": F.timestamp_millis(at_ms),
            "date": F.date_from_unix_date((at_ms / DAY_MS).cast("int")),
        }
    )


def namespace_of(bundle: str) -> Column:
    # A regular expression would take longer than all other work on a row.
    range_length = F.length(F.substring_index(bundle, "/", -1))
    return F.left(F.col(bundle), F.length(bundle) - range_length - 1)


def _zipped(kind: str, name: str) -> Column:
    """Return a group of parallel lists of a line as an array of rows."""
    found = columns_of(kind, name)
    zipped = F.arrays_zip(*(F.col(f"{name}.{field.name}") for field in found.fields))
    # Not all versions of Spark name the fields by the last part of the columns' names.
    return zipped.cast(ArrayType(row_of(found)))
