"""The job ``rollup``: loads per minute, hour and day, and the leader's averages.

Days are only recomputed if a new batch has reports of them, or changes which reports count.

The seed file, which a new leader loads, has a line for each bundle, whatever the length of the
history. The driver receives them one after the other, and holds the compressed file (about 1 kB per
bundle) until it is written.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import parse_bundle
from loadmanager.core.rates import Rates
from loadmanager.core.seed import HOURS, BundleSeed, SeedHead, encode_seed, fits_in_seed
from loadmanager.pipeline.expressions import weighted_mean
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.rollup.frames import Frames
from loadmanager.pipeline.rollup.minutes import CAP_S, RATES
from loadmanager.pipeline.rollup.scope import Scope, facts_of, scope_of
from loadmanager.pipeline.store import Store

SEED = "seed.json.gz"
_LONG: Final = tuple(f"long_{rate}" for rate in RATES)
_MEAN: Final = tuple(f"{rate}_mean" for rate in RATES)
_KEYS: Final = ["cluster", "bundle"]


def bundle_seeds(averages: DataFrame, days: DataFrame, profiles: DataFrame) -> DataFrame:
    """Return one row for each bundle that the leader of its cluster had at the end.

    Without averages of a leader in the history, it is every bundle with reports, and its mean
    replaces the long-term average, with one sample.

    In: the tables ``averages``, ``bundle_days``, ``bundle_profiles``. Out: ``cluster, bundle,
    long_*, long_samples, *_mean, topics``, ``hours`` (168 factors of the mean or null).
    """
    means = days.groupBy(*_KEYS).agg(
        *[weighted_mean(F.col(name), F.col("seconds")).alias(name) for name in _MEAN]
    )
    known = averages.select(*_KEYS, *_LONG, "long_samples", "topics")
    led = averages.select("cluster", F.lit(1).alias("led")).distinct()
    joined = (
        means.join(known, _KEYS, "left")
        .join(F.broadcast(led), "cluster", "left")
        .where(F.col("led").isNull() | F.col("long_samples").isNotNull())
        .join(_factors(means, profiles), _KEYS, "left")
    )
    supposed = [F.coalesce(long, mean).alias(long) for long, mean in zip(_LONG, _MEAN, strict=True)]
    return joined.select(
        *_KEYS,
        *supposed,
        F.coalesce("long_samples", F.lit(1)).alias("long_samples"),
        *_MEAN,
        F.coalesce("topics", F.lit(0)).alias("topics"),
        "hours",
    )


def _factors(means: DataFrame, profiles: DataFrame) -> DataFrame:
    msgs = F.col("msgs_in_per_s_mean") + F.col("msgs_out_per_s_mean")
    overall = means.select(*_KEYS, msgs.alias("overall"))
    cells = profiles.select(*_KEYS, "hour_of_week", msgs.alias("rate")).join(overall, _KEYS)
    factor = F.try_divide("rate", "overall")
    by_hour = F.map_from_entries(F.collect_list(F.struct("hour_of_week", factor.alias("factor"))))
    hours = F.transform(F.sequence(F.lit(0), F.lit(HOURS - 1)), lambda hour: F.col("by_hour")[hour])
    found = cells.groupBy(*_KEYS).agg(by_hour.alias("by_hour"))
    return found.select(*_KEYS, hours.alias("hours"))


def seeds_of(
    rows: Iterator[Row], pass_over: Callable[[str], object] = lambda _name: None
) -> Iterator[BundleSeed]:
    """Yield the seeds in rows of `bundle_seeds`.

    Bundles that no leader could use, because of their name or of excessive rates, are skipped;
    ``pass_over`` is called with the name of each.
    """
    for row in rows:
        seed = _seed_of(row)
        if seed is not None and fits_in_seed(seed):
            yield seed
        else:
            pass_over(row["bundle"])


def _seed_of(row: Row) -> BundleSeed | None:
    try:
        bundle = parse_bundle(row["bundle"])
    except InvalidName:
        return None
    return BundleSeed(
        bundle=bundle,
        long=_rates(row, _LONG),
        long_samples=row["long_samples"],
        mean=_rates(row, _MEAN),
        hours=_hours(row["hours"]),
        topics=row["topics"],
    )


def _rates(row: Row, names: tuple[str, ...]) -> Rates:
    values: list[Any] = [row[name] for name in names]
    return Rates(*values)


def _hours(factors: list[float | None] | None) -> tuple[float | None, ...]:
    return () if factors is None or all(one is None for one in factors) else tuple(factors)


"""The seed file below OUT, if the history is of one cluster."""

_SEEDS: Final = "seeds"
"""The facts that all seed files were written: a run may die between tables and seeds."""


def run(work: Work) -> list[str]:
    """Write all tables of the rollup, and the seed files for leaders.

    Raises:
        PipelineError: nothing was ingested.
    """
    store = work.store
    store.table("broker_load")
    facts, former = facts_of(work), store.facts("rollup")
    scope = scope_of(work, former)
    if former is not None and scope.days == frozenset():
        nothing = "rollup: nothing new was ingested since the last one"
        return [nothing, *([] if _seeded(store, former) else _write_seeds(store, former))]
    with contextlib.closing(Frames(store=store, scope=scope)) as frames:
        store.replace("rollup", frames.every(), facts)
    return [*_summary(store, scope), *_write_seeds(store, facts)]


def _seeded(store: Store, facts: Mapping[str, Any]) -> bool:
    noted = store.facts(_SEEDS)
    return noted is not None and bool(noted["made_at_ms"] == facts["made_at_ms"])


def _summary(store: Store, scope: Scope) -> Iterator[str]:
    days = "all days" if scope.days is None else f"{len(scope.days)} days that new batches touch"
    yield f"rollup: {days} computed; a report stands for at most {CAP_S:g} s"
    counts = store.table("broker_days").agg(
        F.countDistinct("broker"), F.countDistinct("date"), F.round(F.sum("minutes"))
    )
    brokers, dates, minutes = counts.first() or (0, 0, 0)
    bundles = store.table("bundle_days").select("cluster", "bundle").distinct().count()
    yield f"{brokers} brokers, {bundles} bundles, {dates} days, {minutes or 0} broker-minutes"


def _write_seeds(store: Store, facts: Mapping[str, Any]) -> Iterator[str]:
    days = store.table("bundle_days")
    seeds = bundle_seeds(store.table("averages"), days, store.table("bundle_profiles"))
    spans = days.groupBy("cluster").agg(
        F.unix_millis(F.min("date").cast("timestamp")).alias("since_ms"),
        F.unix_millis(F.date_add(F.max("date"), 1).cast("timestamp")).alias("until_ms"),
    )
    clusters = spans.orderBy("cluster").collect()
    for number, cluster in enumerate(clusters, start=1):
        where = SEED if len(clusters) == 1 else f"seed-{number}.json.gz"
        head = SeedHead(
            cluster=cluster["cluster"],
            made_at_ms=facts["made_at_ms"],
            since_ms=cluster["since_ms"],
            until_ms=cluster["until_ms"],
        )
        rows = seeds.where(F.col("cluster") == cluster["cluster"]).orderBy("bundle")
        unfit: list[str] = []
        packed = b"".join(encode_seed(head, seeds_of(rows.toLocalIterator(), unfit.append)))
        store.files.write(f"{store.out}/{where}", packed)
        yield f"seed for leaders of {head.cluster}: {store.out}/{where}"
        if unfit:
            yield f"not in it, with names or rates of no bundle: {len(unfit)}, such as {unfit[0]}"
    store.replace(_SEEDS, {}, {"made_at_ms": facts["made_at_ms"]})
