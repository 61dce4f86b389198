"""The job ``rollup``: loads per minute, hour and day, and the leader's averages.

Days are only recomputed if a new batch has reports of them, or changes which reports count.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.seed import SeedHead, encode_seed
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.rollup.frames import Frames
from loadmanager.pipeline.rollup.minutes import CAP_S
from loadmanager.pipeline.rollup.scope import Scope, facts_of, scope_of
from loadmanager.pipeline.rollup.seed_file import bundle_seeds, seeds_of
from loadmanager.pipeline.store import Store

SEED = "seed.json.gz"
"""The seed file below OUT, if the history is of one cluster."""

_SEEDS: Final = "seeds"
"""The facts that all seed files were written: a run may die between tables and seeds."""


def run(work: Work) -> list[str]:
    """Write all tables of `rollup_tables`, and the seed files for leaders.

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
