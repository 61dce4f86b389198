"""The leader's averages at the end of the history, computed from reports and ticks.

A *stretch* is the time from the last base round of a cluster's last term, whose averages are
recorded, to the last tick of that term. Each is recomputed on arrays of Arrow and numpy, without
Spark, with the arithmetic of the leader.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.averages import LONG_SAMPLES, SHORT_SAMPLES, add_samples
from loadmanager.core.history.schema import SHORT_AND_LONG
from loadmanager.pipeline.expressions import union
from loadmanager.pipeline.rollup.period_rows import RATES
from loadmanager.pipeline.tables import namespace_of

BUNDLES_AT_ONCE: Final = 10_000


FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

TERM: Final = ("cluster", "writer", "instance", "epoch")
STRETCH: Final = (*TERM, "round")
"""The key of a stretch: the base round at its beginning."""

START, LISTED = range(2)
"""The kind of a row: averages at the beginning, or a bundle in a report."""

AVERAGES: Final = tuple(one.name for one in SHORT_AND_LONG)
COUNTS: Final = ("short_samples", "long_samples", "topics")
NUMBERS: Final = ("from_tick", "until_tick", "line", "item")

STATES: Final = ", ".join(
    [
        *(f"{name} string" for name in STRETCH[:3]),
        *(f"{name} bigint" for name in STRETCH[3:]),
        "bundle string",
        *(f"{name} double" for name in AVERAGES),
        *(f"{name} bigint" for name in COUNTS),
    ]
)
"""The schema of `ended`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Averages of bundles, one per row; rates are (bundles, 4). Unknown without samples."""

    short: FloatArray
    long: FloatArray
    short_samples: IntArray
    long_samples: IntArray
    topics: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Listings:
    """Bundles listed by reports that count from ``from_tick`` to ``until_tick``, inclusive.

    ``rows`` are the bundles. They are in the order in which the leader processed the reports of
    a tick: if two list the same bundle, the later one counts.
    """

    rows: IntArray
    rates: FloatArray
    topics: IntArray
    from_tick: IntArray
    until_tick: IntArray


def replayed(state: State, listings: Listings, after_tick: int, until_tick: int) -> State:
    """Return the state after one sample of every listed bundle at each tick.

    The first sample is that of the tick after ``after_tick``, the last that of ``until_tick``.
    Bundles that no current report lists get no sample.
    """
    bundles = len(state.topics)
    by_begin = np.argsort(listings.from_tick, kind="stable")
    by_end = np.argsort(listings.until_tick, kind="stable")
    begins, ends = listings.from_tick[by_begin], listings.until_tick[by_end]
    listed = np.zeros(bundles, dtype=np.int64)
    rates, topics = np.zeros((bundles, 4)), np.zeros(bundles, dtype=np.int64)
    for tick in range(after_tick + 1, until_tick + 1):
        new = by_begin[np.searchsorted(begins, tick) : np.searchsorted(begins, tick, "right")]
        over = by_end[np.searchsorted(ends, tick - 1) : np.searchsorted(ends, tick - 1, "right")]
        rates[listings.rows[new]] = listings.rates[new]
        topics[listings.rows[new]] = listings.topics[new]
        listed += np.bincount(listings.rows[new], minlength=bundles)
        listed -= np.bincount(listings.rows[over], minlength=bundles)
        state = _sampled(state, rates, topics, listed > 0)
    return state


def _sampled(state: State, rates: FloatArray, topics: IntArray, listed: NDArray[np.bool_]) -> State:
    short, short_samples = add_samples(state.short, state.short_samples, rates, SHORT_SAMPLES)
    long, long_samples = add_samples(state.long, state.long_samples, rates, LONG_SAMPLES)
    every = listed[:, np.newaxis]
    return State(
        short=np.where(every, short, state.short),
        long=np.where(every, long, state.long),
        short_samples=np.where(listed, short_samples, state.short_samples),
        long_samples=np.where(listed, long_samples, state.long_samples),
        topics=np.where(listed, topics, state.topics),
    )


def ended(table: pa.Table) -> pa.Table:
    def column(name: str) -> NDArray[Any]:
        found: NDArray[Any] = table[name].fill_null(0).to_numpy()
        return found

    def matrix(names: tuple[str, ...], rows: IntArray) -> FloatArray:
        return np.column_stack([column(name)[rows] for name in names])

    encoded = table["bundle"].combine_chunks().dictionary_encode()
    names, bundle = encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)
    started = np.flatnonzero(column("what") == START)
    rates = np.zeros((len(names), len(AVERAGES)))
    rates[bundle[started]] = matrix(AVERAGES, started)
    counts = np.zeros((len(names), len(COUNTS)), dtype=np.int64)
    counts[bundle[started]] = matrix(COUNTS, started)
    short, long = np.hsplit(rates, 2)
    begin = State(short=short, long=long, **dict(zip(COUNTS, counts.T, strict=True)))
    listed = np.flatnonzero(column("what") == LISTED)
    listed = listed[np.lexsort((column("item")[listed], column("line")[listed]))]
    listings = Listings(
        rows=bundle[listed],
        rates=matrix(RATES, listed),
        **{
            name: column(name)[listed].astype(np.int64)
            for name in ("topics", "from_tick", "until_tick")
        },
    )
    state = replayed(begin, listings, int(column("tick")[0]), int(column("stretch_until")[0]))
    known = np.flatnonzero(state.short_samples > 0)
    averages = zip(AVERAGES, np.hstack([state.short, state.long])[known].T, strict=True)
    return pa.table(
        {
            **{name: pa.repeat(table[name][0], len(known)) for name in STRETCH},
            "bundle": names.take(pa.array(known)),
            **{name: pa.array(one) for name, one in averages},
            **{name: pa.array(getattr(state, name)[known]) for name in COUNTS},
        }
    )


"""Approximate number of bundles of one stretch in a task."""

_DAYS_BEFORE: Final = 2
"""The largest age of a report that counts at a base; in a healthy cluster it is a minute."""

_REPORT: Final = ["cluster", "broker", "reported_at_ms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderHistory:
    rounds: DataFrame
    ticks: DataFrame
    bundle_averages: DataFrame
    bundle_load: DataFrame


def latest_averages(history: LeaderHistory) -> DataFrame:
    """Return the averages of all bundles after the last tick of the last term of each cluster.

    The last term is that of the highest epoch. Without ticks the averages are the last recorded
    ones.
    """
    last = _stretches(history.rounds, history.ticks)
    recorded = history.bundle_averages.join(last, list(STRETCH), "left_semi").select(
        *STRETCH, F.lit(START).alias("what"), "bundle", *AVERAGES, *COUNTS
    )
    bundles = _lately(last, history.bundle_load).select(*_REPORT, "bundle", *RATES, "topics")
    listed = bundles.join(_counting_reports(last, history.ticks), _REPORT).select(
        *STRETCH, F.lit(LISTED).alias("what"), "bundle", *NUMBERS, *RATES, "topics"
    )
    parts = F.greatest(F.ceil(F.col("bundles_known") / BUNDLES_AT_ONCE), F.lit(1))
    bounds = last.select(
        *STRETCH, "tick", F.col("until_tick").alias("stretch_until"), parts.alias("parts")
    )
    rows = union([recorded, listed], missing_columns=True).join(F.broadcast(bounds), list(STRETCH))
    part = F.pmod(F.hash("bundle"), F.col("parts")).alias("part")
    states = rows.select("*", part).drop("parts").groupBy(*STRETCH, "part")
    facts = last.select(
        *STRETCH,
        F.col("until_at").alias("at"),
        F.coalesce(F.col("until_tick") - F.col("tick"), F.lit(0)).alias("ticks"),
    )
    found = states.applyInArrow(ended, STATES).withColumn("namespace", namespace_of("bundle"))
    return found.join(F.broadcast(facts), list(STRETCH))


def _stretches(rounds: DataFrame, ticks: DataFrame) -> DataFrame:
    """Return the last stretch of each cluster.

    Out: `STRETCH`, ``tick`` (after which it begins), ``until_tick``, ``until_at`` of its last tick
    or the base, ``bundles_known`` and ``brokers``. Simulations write no ticks: both are null.
    """
    newest = Window.partitionBy("cluster").orderBy(F.desc("epoch"), F.desc("round"))
    bases = rounds.where("base").withColumn("age", F.row_number().over(newest)).where("age = 1")
    last = ticks.groupBy(*TERM).agg(
        F.max("tick").alias("last_tick"), F.max_by("at", "tick").alias("last_at")
    )
    until_at = F.when(F.col("last_tick") > F.col("tick"), F.col("last_at"))
    return bases.join(last, list(TERM), "left").select(
        *(*STRETCH, "tick", "at", "bundles_known", "brokers"),
        F.greatest("last_tick", "tick").alias("until_tick"),
        F.coalesce(until_at, "at").alias("until_at"),
    )


def _lately(last: DataFrame, bundle_load: DataFrame) -> DataFrame:
    """Return the reports that may count since the beginning of the stretches."""
    began = last.agg(F.min(F.to_date("at"))).first()
    if began is None or began[0] is None:
        return bundle_load.limit(0)
    return bundle_load.where(F.col("date") >= F.date_sub(F.lit(began[0]), _DAYS_BEFORE))


def _counting_reports(last: DataFrame, ticks: DataFrame) -> DataFrame:
    """Return which report of each broker counts at which ticks of each stretch.

    Out: `STRETCH`, ``broker``, ``reported_at_ms``, ``from_tick``, ``until_tick``; ``line`` and
    ``item`` are the order in which the leader processed them. A report recorded before a base
    round without a sample counts from the next sample on.
    """
    began = last.where(F.col("tick").isNotNull())
    kept = [*STRETCH, "until_tick", "from_tick", "line"]
    first = began.select(
        *STRETCH,
        "until_tick",
        (F.col("tick") + 1).alias("from_tick"),
        F.lit(0).cast("bigint").alias("line"),
        F.posexplode("brokers").alias("item", "seen"),
    )
    from_tick = F.col("tick") + F.when(F.col("sampled"), F.lit(0)).otherwise(F.lit(1))
    changed = ticks.select(
        *TERM, F.col("seq").alias("line"), "taken", "left", from_tick.alias("from_tick")
    ).join(F.broadcast(began.select(*STRETCH, "tick", "until_tick")), list(TERM))
    lines = changed.where(F.col("from_tick") > F.col("tick"))
    taken = lines.select(*kept, F.posexplode("taken").alias("item", "seen"))
    # Those that left, but for those that came back.
    back = F.transform("taken", lambda one: one["broker"])
    gone = lines.select(
        *kept, F.posexplode(F.array_except("left", back)).alias("item", "broker")
    ).withColumn("reported_at_ms", F.lit(None).cast("bigint"))
    seen = [*kept, "item", "seen.broker", "seen.reported_at_ms"]
    one_broker = Window.partitionBy(*STRETCH, "broker").orderBy("from_tick", "line", "item")
    until = F.least(
        F.coalesce(F.lead("from_tick").over(one_broker) - 1, "until_tick"), "until_tick"
    )
    changes = union([first.select(seen), taken.select(seen), gone])
    spans = changes.withColumn("until_tick", until)
    return spans.where("reported_at_ms IS NOT NULL AND from_tick <= until_tick").select(
        *STRETCH, "broker", "reported_at_ms", *NUMBERS
    )
