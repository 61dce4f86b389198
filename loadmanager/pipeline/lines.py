"""From files of history to lines that are what they should be, and those that are not.

Text is parsed once, into a staged table with a column for each kind of line; everything
else looks at that.
"""

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from loadmanager.core.history.kinds import KINDS
from loadmanager.core.history.schema import VERSION, Stream
from loadmanager.pipeline.history_schema import CORRUPT, fault_of, line_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RAW: Final = StructType(
    [
        StructField("file", StringType()),
        StructField("number", LongType()),
        StructField("text", StringType()),
    ]
)
"""A line as it stands in its file: ``number`` grows within a file, by one each line."""

QUARANTINE: Final = StructType(
    [
        StructField("file", StringType()),
        StructField("line", LongType()),
        StructField("reason", StringType()),
        StructField("text", StringType()),
    ]
)
"""A line that was not taken: from 1 within its file, 0 for the file as a whole."""

SHOWN_CHARACTERS: Final = 2000
"""How much of the text of a line in quarantine is kept."""

_ENVELOPE: Final = r'^\{"schema":(\d{1,9}),"kind":"([a-z_]+)",'
"""How our own writers begin a line: known without reading it to its end."""

_CLAIMS: Final = "schema INT, kind STRING"


def kinds_of(stream: Stream) -> tuple[str, ...]:
    """Return the kinds of line that a stream has."""
    return tuple(name for name, kind in KINDS.items() if kind.stream is stream)


def read_raw(spark: "SparkSession", files: Sequence[str], *, spoilt: bool = False) -> DataFrame:
    """Return the lines of files as they stand there (`RAW`).

    ``spoilt`` reads files that end in the middle as far as they go; else reading them fails.
    """
    reader = spark.read.option("ignoreCorruptFiles", str(spoilt).lower())
    return reader.text(list(files)).select(
        F.col("_metadata.file_path").alias("file"),
        F.monotonically_increasing_id().alias("number"),
        F.col("value").alias("text"),
    )


def parsed(raw: DataFrame, stream: Stream) -> DataFrame:
    """Return ``raw`` (`RAW`) with what each line claims to be, and a column for each kind.

    ``text`` stays only where no kind has the line.
    """
    ours = F.regexp_extract("text", _ENVELOPE, 2)
    schema = F.regexp_extract("text", _ENVELOPE, 1).cast(IntegerType())
    claims = F.when(ours != "", F.struct(schema.alias("schema"), ours.alias("kind")))
    told = raw.withColumn("claims", claims.otherwise(F.from_json("text", _CLAIMS)))
    lines = [_parsed(kind) for kind in kinds_of(stream)]
    known = _known(kinds_of(stream), F.col("claims.schema"), F.col("claims.kind"))
    return told.select(
        "file",
        "number",
        F.col("claims.schema").alias("claimed_schema"),
        F.col("claims.kind").alias("claimed_kind"),
        F.when(~known, F.substring("text", 1, SHOWN_CHARACTERS)).alias("text"),
        *lines,
    )


def _parsed(kind: str) -> Column:
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    claimed = (F.col("claims.schema") == VERSION) & (F.col("claims.kind") == kind)
    return F.when(claimed, F.from_json("text", line_schema(kind), options)).alias(kind)


def judged(staged: DataFrame, stream: Stream) -> DataFrame:
    """Return what `parsed` made, with ``fault``: why a line is not taken, null if it is."""
    kinds = kinds_of(stream)
    known = _known(kinds, F.col("claimed_schema"), F.col("claimed_kind"))
    faults = [F.when(F.col("claimed_kind") == kind, fault_of(kind, F.col(kind))) for kind in kinds]
    return staged.withColumn(
        "fault", F.when(~known, _why_unknown(kinds)).otherwise(F.coalesce(*faults))
    )


def taken(lines: DataFrame, kind: str) -> DataFrame:
    """Return the sound lines of a kind, of what `judged` returned: their own fields."""
    sound = lines.where(F.col("fault").isNull() & (F.col("claimed_kind") == kind))
    return sound.select(f"{kind}.*").drop(CORRUPT)


def refused(lines: DataFrame, stream: Stream, first: DataFrame) -> DataFrame:
    """Return the lines that are not taken (`QUARANTINE`), given `first_numbers`."""
    texts = reduce(
        F.coalesce,
        [F.coalesce(F.col(kind)[CORRUPT], F.to_json(kind)) for kind in kinds_of(stream)],
        F.col("text"),
    )
    bad = lines.where(F.col("fault").isNotNull())
    return bad.join(F.broadcast(first), "file").select(
        "file",
        (F.col("number") - F.col("first") + 1).alias("line"),
        F.col("fault").alias("reason"),
        F.substring(texts, 1, SHOWN_CHARACTERS).alias("text"),
    )


def first_numbers(staged: DataFrame) -> DataFrame:
    """Return the number of each file's first line: file, first."""
    return staged.groupBy("file").agg(F.min("number").alias("first"))


def _known(kinds: Sequence[str], schema: Column, kind: Column) -> Column:
    known = (schema == VERSION) & kind.isin(*kinds)
    return F.coalesce(known, F.lit(False))  # noqa: FBT003 - a value


def _why_unknown(kinds: Sequence[str]) -> Column:
    schema, kind = F.col("claimed_schema"), F.col("claimed_kind")
    return (
        F.when(schema.isNull(), F.lit("expected a line of history: a JSON object with a schema"))
        .when(
            schema != VERSION, F.concat(F.lit("schema: "), schema, F.lit(f"; expected {VERSION}"))
        )
        .when(kind.isNull(), F.lit(f"kind: expected one of {', '.join(kinds)}"))
        .otherwise(F.concat(F.lit("kind: "), kind, F.lit(f"; expected one of {', '.join(kinds)}")))
    )
