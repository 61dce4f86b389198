"""The tables that history becomes, and how: a function of data frames for each.

Every table has the envelope of the line that a row is from, ``at`` (``at_ms`` as a
timestamp) and ``date`` (of ``at`` in UTC), by which it is partitioned.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    ArrayType,
    DateType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from loadmanager.core.bounds import DAY_MS
from loadmanager.core.history.kinds import KINDS
from loadmanager.core.history.schema import ENVELOPE
from loadmanager.pipeline.contract import Table
from loadmanager.pipeline.history_schema import columns_of, fields_of, line_schema, plain, row_of

_ENVELOPE: Final = ("cluster", "writer", "instance", "seq")
_REPORT: Final = ("broker", "broker_class", "reported_at_ms", "interval_s", "window_s")

_BEGINNING: Final = (
    StructField("at", TimestampType(), metadata={"meaning": "When it happened, in UTC."}),
    StructField("date", DateType(), metadata={"meaning": "The day of it in UTC."}),
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
    columns = columns_of(kind, name)
    return StructField(name, ArrayType(row_of(columns)), metadata={"meaning": columns.meaning})


def _text(name: str, meaning: str) -> StructField:
    return StructField(name, StringType(), metadata={"meaning": meaning})


def _count(name: str, meaning: str) -> StructField:
    return StructField(name, LongType(), metadata={"meaning": meaning})


BROKER_LOAD: Final = _table(
    "broker_load",
    "One row for each load report of a broker.",
    *fields_of("report"),
    _count("bundle_count", "Bundles that the report lists."),
)
BUNDLE_LOAD: Final = _table(
    "bundle_load",
    "One row for each bundle of each load report.",
    *_some("report", *_REPORT),
    _text("namespace", "tenant/namespace of the bundle."),
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


def _as_it_is(name: str, kind: str) -> Table:
    return _table(name, KINDS[kind].meaning, *fields_of(kind))


QUARANTINE: Final = Table(
    name="quarantine",
    job="ingest",
    meaning="One row for each line that was not taken, and why.",
    schema=StructType(
        [
            _text("file", "The file below the history directory."),
            _count("line", "Its line, from 1; for a file that ends too early, where it ends."),
            _text("reason", "What was found, and what was expected."),
            _text("text", "The line's first 2,000 characters."),
        ]
    ),
)
KEYS: Final = Table(
    name="lines",
    job="ingest",
    meaning="One row for each line that is in the tables: what a second one is known by.",
    schema=StructType(
        [
            _text("stream", "reports or rounds: each is numbered by itself."),
            *plain(one for one in ENVELOPE if one.name in {"writer", "instance", "seq"}),
            _text("kind", "Kind of the line."),
            _count("digest", "Of the line's bytes: copies have the same."),
            _text("file", "The file that it was read from."),
            _count("line", "Number of its line in that file, from 1."),
        ]
    ),
)
SPANS: Final = Table(
    name="spans",
    job="ingest",
    meaning="From when to when a sidecar reported on a broker, within a batch.",
    schema=StructType(
        [
            *_some("report", "broker"),
            *plain(one for one in ENVELOPE if one.name in {"cluster", "writer", "instance"}),
            *_some("report", "started_at_ms"),
            _count("first_ms", "When the first report was made."),
            _count("last_ms", "When the last report was made."),
        ]
    ),
)
DUPLICATES: Final = Table(
    name="doubled",
    job="ingest",
    meaning="Reports that are passed over: another sidecar reported on the broker as well.",
    schema=StructType(
        [
            *SPANS.schema.fields[:4],
            _text("for_instance", "Instance that began later: its reports count."),
            _count("from_ms", "When the passed-over reports begin."),
            _count("until_ms", "When they end, inclusive."),
        ]
    ),
)


@dataclass(frozen=True, slots=True)
class Made:
    """A table and the kind of line it is made of; ``make`` gets their fields."""

    table: Table
    kind: str
    make: Callable[[DataFrame], DataFrame]


def broker_load(lines: DataFrame) -> DataFrame:
    """Return one row for each report; `read_files` counted and took out its bundles."""
    return lines


def rounds(lines: DataFrame) -> DataFrame:
    """Return one row for each round, what it saw of brokers and orders as lists of rows."""
    return lines.withColumns({name: _zipped("round", name) for name in ("brokers", "in_flight")})


def refusals(lines: DataFrame) -> DataFrame:
    """Return one row for each refusal of a round."""
    return _inlined(lines, REFUSALS, "round", "refusals")


def bundle_averages(lines: DataFrame) -> DataFrame:
    """Return one row for each bundle of a base round."""
    return _inlined(lines, BUNDLE_AVERAGES, "bundles", "bundles")


def ticks(lines: DataFrame) -> DataFrame:
    """Return one row for each tick, the reports that were taken as a list of rows."""
    return lines.withColumn("taken", _zipped("tick", "taken"))


def _unchanged(lines: DataFrame) -> DataFrame:
    return lines


OF_LINES: Final = (
    Made(BROKER_LOAD, "report", broker_load),
    Made(ROUNDS, "round", rounds),
    Made(REFUSALS, "round", refusals),
    Made(_as_it_is("optimality", "optimality"), "optimality", _unchanged),
    Made(_as_it_is("shadows", "shadow"), "shadow", _unchanged),
    Made(BUNDLE_AVERAGES, "bundles", bundle_averages),
    Made(TICKS, "tick", ticks),
    Made(_as_it_is("moves", "move"), "move", _unchanged),
    Made(_as_it_is("hand_overs", "hand_over"), "hand_over", _unchanged),
    Made(_as_it_is("tasks", "task"), "task", _unchanged),
    Made(_as_it_is("cuts", "cut"), "cut", _unchanged),
    Made(_as_it_is("terms", "term"), "term", _unchanged),
    Made(_as_it_is("lost_reports", "lost_reports"), "lost_reports", _unchanged),
    Made(_as_it_is("lost_rounds", "lost_rounds"), "lost_rounds", _unchanged),
)
"""All tables but ``bundle_load``, whose rows are made where lines are read."""

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
"""The ingested tables by their names."""

MADE_BY: Final[Mapping[str, str]] = MappingProxyType(
    {
        name: job
        for job, names in {
            "rollup": (
                *(
                    f"{subject}_{length}"
                    for subject in ("broker", "bundle", "namespace", "class")
                    for length in ("minutes", "hours", "days")
                ),
                "cluster_minutes",
                "bundle_profiles",
                "bundle_ranking",
                "averages",
                "average_checks",
            ),
            "moves": ("move_effects", "move_predictions", "move_summary", "ping_pong"),
            "costs": ("cost_terms", "cost_quality", "backgrounds"),
            "replay": ("replay_scores", "replay_trust"),
            "stream": ("stream_minutes", "stream_alerts"),
        }.items()
        for name in names
    }
)
"""Which job makes a derived table: to say so where it is asked for too early."""


def parsed_schema(kind: str) -> StructType:
    """Return the schema of the JSON in which `read_files` gives a line."""
    schema = line_schema(kind)
    if kind != "report":
        return schema
    kept = [one for one in schema if one.name != "bundles"]
    return StructType([*kept, BROKER_LOAD.schema["bundle_count"]])


def with_dates(lines: DataFrame) -> DataFrame:
    """Return lines with ``at`` and ``date``; the reader takes no time that is none of a date."""
    at_ms = F.col("at_ms")
    return lines.withColumns(
        {
            "at": F.timestamp_millis(at_ms),
            "date": F.date_from_unix_date((at_ms / DAY_MS).cast("int")),
        }
    )


def namespace_of(bundle: str) -> Column:
    """Return the namespace of the bundle whose name is in a column."""
    # A regular expression takes longer than all else that is done to a row.
    range_length = F.length(F.substring_index(bundle, "/", -1))
    return F.left(F.col(bundle), F.length(bundle) - range_length - 1)


def _zipped(kind: str, name: str) -> Column:
    """Return columns of a line as a list of rows."""
    columns = columns_of(kind, name)
    zipped = F.arrays_zip(*(F.col(f"{name}.{field.name}") for field in columns.fields))
    # Spark names what it zips by the last part of a name, but not in all its versions.
    return zipped.cast(ArrayType(row_of(columns)))


def _inlined(lines: DataFrame, table: Table, kind: str, name: str) -> DataFrame:
    own = [one for one in table.schema.names if one not in row_of(columns_of(kind, name)).names]
    return lines.select(*own, F.inline(_zipped(kind, name)))
