"""The job ``replay``: effect of other strategies and settings on the recorded traffic.

docs/replay.md describes what is replayed, what the scores mean, and how far to trust them.

A segment begins at a base round and contains the gapless lines of one leader in one term, for some
hours. Lines before the first base round of a gapless stretch belong to no segment.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from datetime import timedelta
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DoubleType, LongType

from loadmanager.config import ConfigError
from loadmanager.core.history.schema import Columns
from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.contract import Table, column, columns
from loadmanager.pipeline.expressions import between, union
from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.replay.combinations import combinations, spread_anew
from loadmanager.pipeline.replay.events import AVERAGED, LISTED
from loadmanager.pipeline.replay.judging import (
    Found,
    advised,
    judged,
    ranked,
    scored,
    sentences,
    summary,
)
from loadmanager.pipeline.replay.measures import SEGMENT_H, SETTLE_S, Scores
from loadmanager.pipeline.replay.replay_run import Rules
from loadmanager.pipeline.replay.segment_replay import RECORDED, SegmentReplay
from loadmanager.pipeline.replay.spark_tasks import LINES, replayed, task_split, tasks_of
from loadmanager.pipeline.session import settings_of
from loadmanager.pipeline.tables import columns_of

_USUAL_HAND_OVER_S: Final = 5.0
_SETTINGS: Final = {"spark.sql.execution.arrow.maxRecordsPerBatch": "64"}
_NAMED: Final = """
    combination int Its number; -1 is what was recorded.
    name string The pair with its settings, or what was recorded.
"""

REPLAY_ROUNDS: Final = Table(
    name="replay_rounds",
    job="replay",
    meaning="One row for each round and combination.",
    schema=LINES,
)
REPLAY_SCORES: Final = Table(
    name="replay_scores",
    job="replay",
    meaning="One row for each combination, by rank; and one for what was recorded.",
    schema=columns(
        f"""
        rank int From 1, by penalty; the recorded has one, too.
        {_NAMED}
        shedder string Its name; empty: as recorded.
        placement string Its name; empty: as recorded.
        settings string What was set, key=value, with a space between.
        gap double Its penalty less that of the recorded strategy begun alike; below 0: better.
        """,
        (
            column(one.name, LongType() if one.type is int else DoubleType(), one.metadata["what"])
            for one in fields(Scores)
        ),
    ),
)
REPLAY_TRUST: Final = Table(
    name="replay_trust",
    job="replay",
    meaning="One row for each combination: how far its scores can be trusted, and why.",
    schema=columns(
        _NAMED,
        """
        level string high, fair, low or none.
        because string Why the level is not higher.
        away double Fraction of the traffic elsewhere than recorded.
        rounds bigint Rounds in the history.
        covered_s double How long those that were replayed stood, seconds.
        decisions bigint Bundles that the recorded leader moved for load.
        refused bigint Rounds that could not be replayed.
        refused_by_reason string The same by reason, as JSON.
        bases bigint Base rounds that were decided again.
        reproduced bigint Base rounds that were decided exactly as recorded.
        difference string The first round that was not, if any.
        changes bigint Brokers whose bundles had changed, over all rounds.
        """,
        (
            column(f"{one}_{group}_error", DoubleType(), f"{what}, a fraction of the limit.")
            for group, what in (
                ("changed", "Mean error of their predicted usage"),
                ("unchanged", "The same of brokers whose bundles stayed"),
            )
            for one in RESOURCES
        ),
    ),
)


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


def score_rows(found: Found, replay: SegmentReplay) -> Iterator[Mapping[str, Any]]:
    known = {one.number: one for one in replay.combinations}
    for rank, (number, name, one) in enumerate(ranked(found, replay.combinations), start=1):
        combination = known.get(number)
        like = _begun_alike(found, replay, anew=combination is not None and combination.spread_anew)
        yield {
            "rank": rank,
            "combination": number,
            "name": name,
            "shedder": combination.shedder if combination else "",
            "placement": combination.placement if combination else "",
            "settings": " ".join(combination.settings) if combination else "",
            "gap": None if like is None else one.penalty - like.penalty,
            **asdict(one),
        }


def _begun_alike(found: Found, replay: SegmentReplay, *, anew: bool) -> Scores | None:
    """Return the scores of the recorded strategy from the same start."""
    if not anew:
        return found.scores.get(RECORDED)
    return next(
        (
            found.scores.get(one.number)
            for one in replay.combinations
            if one.spread_anew and not one.shedder
        ),
        None,
    )


def trust_rows(found: Found, replay: SegmentReplay) -> Iterator[Mapping[str, Any]]:
    evidence = found.evidence
    common = {
        "rounds": evidence.rounds,
        "covered_s": evidence.covered_s,
        "decisions": evidence.decisions,
        "refused": sum(evidence.refused.values()),
        "refused_by_reason": json.dumps(evidence.refused, sort_keys=True),
        "bases": evidence.bases,
        "reproduced": evidence.reproduced,
        "difference": evidence.difference,
        "changes": evidence.changed_count,
        **{f"{one}_changed_error": evidence.changed[one] for one in RESOURCES},
        **{f"{one}_unchanged_error": evidence.unchanged[one] for one in RESOURCES},
    }
    for number, name, one in ranked(found, replay.combinations):
        if number != RECORDED:
            yield {"combination": number, "name": name, **_verdict(found, one), **common}


def _verdict(found: Found, scores: Scores) -> Mapping[str, Any]:
    level, because = judged(found.evidence, scores.away)
    return {"level": level.value, "because": because, "away": scores.away}


"""A row may be a report of a thousand bundles."""

_REPORTS_BEFORE: Final = timedelta(hours=1)
"""The largest age of a report that a round uses."""


def run(work: Work) -> list[str]:
    """Replay the ingested history.

    Raises:
        PipelineError: nothing was ingested, or a strategy or setting does not exist.
    """
    try:
        named = combinations(work.options.get("strategy", ()), work.options.get("setting", ()))
    except ConfigError as error:
        raise PipelineError(f"job replay: {error}") from None
    tried = spread_anew(named)
    tables = _tables(work)
    segment_s = 3600.0 * float(work.options.get("segment_h") or SEGMENT_H)
    rules = Rules(hand_over_s=_hand_over_s(tables), settle_s=SETTLE_S)
    replay = SegmentReplay(combinations=tried, rules=rules)
    lines = index(tables, segment_s).persist(StorageLevel.MEMORY_AND_DISK)
    made: DataFrame | None = None
    try:
        segments = lines.where(F.col("kind") == "round").agg(F.countDistinct("segment")).first()
        cores = work.spark.sparkContext.defaultParallelism
        how = task_split(int(segments[0]) if segments else 0, len(tried), cores)
        work.print_line(
            f"{len(tried)} combinations, {how.segments} segments of history, {how.tasks} tasks"
        )
        tasks = tasks_of(lines, how.parts)
        with settings_of(work.spark, _SETTINGS):
            made = replayed(events(tables, lines), tasks, how, replay)
            made = made.persist(StorageLevel.DISK_ONLY)
            found = scored(
                made, lines.where((F.col("kind") == "round") & F.col("segment").isNull()).count()
            )
            _store(work, made, found, replay)
    finally:
        lines.unpersist()
        if made is not None:
            made.unpersist()
    return [*summary(found, replay), *sentences(advised(found, replay))]


def _tables(work: Work) -> Tables:
    """Return the reader of tables of the requested time; reports may be older."""

    def table(name: str) -> DataFrame:
        before = _REPORTS_BEFORE if name in {"broker_load", "bundle_load"} else timedelta()
        return between(work.store.table(name), work.since, work.until, margin=before)

    return table


def _hand_over_s(tables: Tables) -> float:
    done = tables("hand_overs").where(
        (F.col("outcome") == "finished") & F.col("took_s").isNotNull()
    )
    row = done.agg(F.percentile_approx("took_s", 0.5)).first()
    return _USUAL_HAND_OVER_S if row is None or row[0] is None else float(row[0])


def _store(work: Work, lines: DataFrame, found: Found, replay: SegmentReplay) -> None:
    scores, trust = list(score_rows(found, replay)), list(trust_rows(found, replay))
    spark = work.spark
    work.store.replace(
        "replay",
        {
            REPLAY_ROUNDS: lines,
            REPLAY_SCORES: spark.createDataFrame(scores, REPLAY_SCORES.schema),
            REPLAY_TRUST: spark.createDataFrame(trust, REPLAY_TRUST.schema),
        },
        _facts(found, replay),
    )


def _facts(found: Found, replay: SegmentReplay) -> Mapping[str, Any]:
    evidence = found.evidence
    return {
        "rounds": evidence.rounds,
        "replayed": evidence.rounds - sum(evidence.refused.values()),
        "refused": dict(evidence.refused),
        "combinations": len(replay.combinations),
        "hand_over_s": replay.rules.hand_over_s,
        "overload": replay.rules.overload,
        "advice": asdict(advised(found, replay)),
    }
