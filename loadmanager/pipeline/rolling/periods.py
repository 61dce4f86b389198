"""From minutes to hours and days.

Means of hours are exact: those of minutes, weighted by their seconds. Percentiles are over
the means of the minutes, each of which counts once. Days are made of minutes, too, for the
percentile of percentiles is nothing.

``msgs_per_s_std`` and ``bytes_per_s_std`` say how far minutes' rates, in and out together,
are from their mean: the root of the mean square, weighted by time. The highest is of
reports where minutes have one, else of minutes.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from loadmanager.core.bounds import DAY_MS, HOUR_MS
from loadmanager.pipeline.rolling.numbered import KEY, keys_of, names_in, with_names
from loadmanager.pipeline.rolling.period_rows import DAY, periods_of


def longer(
    minutes: DataFrame,
    keys: Sequence[str],
    measures: Sequence[str],
    named: DataFrame | None = None,
) -> DataFrame:
    """Return what `hours` and `days` are chosen from: one row for each of ``keys`` and either.

    ``named`` (`names_in`) have the names of all ``keys``, and maybe more that follow from them;
    without it they are looked for in the minutes.

    Both are made while minutes are sorted once. A caller that uses both should persist it: it
    has a sixtieth of the rows, or a few more.
    """
    periods = periods_of(measures, minutes.columns)
    numbered = minutes.select(
        *keys_of(keys), F.unix_millis("minute").alias("minute_ms"), *periods.read
    )
    # Of a key and day, a worker gets all minutes together: it need not remember others. By one
    # number Spark sorts without comparing rows.
    day = F.xxhash64(*KEY, F.floor(F.col("minute_ms") / DAY_MS))
    by_day = numbered.withColumn(DAY, day).repartition(DAY).sortWithinPartitions(DAY)
    found = by_day.mapInArrow(periods.computed, periods.schema)
    return with_names(found, names_in(minutes, keys) if named is None else named)


def hours(periods: DataFrame) -> DataFrame:
    """Return one row for each key and hour of `longer`: ``hour``, ``date``, and statistics."""
    return _of_length(periods, HOUR_MS).withColumnRenamed("period", "hour")


def days(periods: DataFrame) -> DataFrame:
    """Return one row for each key and day of `longer`: ``date``, and statistics."""
    return _of_length(periods, DAY_MS).drop("period")


def _of_length(periods: DataFrame, length_ms: int) -> DataFrame:
    period = F.timestamp_millis("period_ms")
    those = periods.where(F.col("length_ms") == length_ms).drop("length_ms")
    return those.withColumns({"period": period, "date": F.to_date(period)}).drop("period_ms")
