"""The job ``replay``: effect of other strategies and settings on the recorded traffic.

docs/replay.md describes what is replayed, what the scores mean, and how far to trust them.
"""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.config import ConfigError
from loadmanager.pipeline.expressions import between
from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.replay.advice import advised, sentences
from loadmanager.pipeline.replay.combinations import combinations, spread_anew
from loadmanager.pipeline.replay.replay_run import Rules
from loadmanager.pipeline.replay.replay_tables import (
    REPLAY_ROUNDS,
    REPLAY_SCORES,
    REPLAY_TRUST,
    score_rows,
    trust_rows,
)
from loadmanager.pipeline.replay.results import Found, scored, summary
from loadmanager.pipeline.replay.segment_replay import SegmentReplay
from loadmanager.pipeline.replay.segments import Tables, events, index
from loadmanager.pipeline.replay.spark_tasks import TaskSplit, replayed, task_split, tasks_of
from loadmanager.pipeline.replay.thresholds import SEGMENT_H, SETTLE_S
from loadmanager.pipeline.session import settings_of

_USUAL_HAND_OVER_S: Final = 5.0
_SETTINGS: Final = {"spark.sql.execution.arrow.maxRecordsPerBatch": "64"}
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
        how = _spread(work, lines, len(tried))
        work.print_line(
            f"{len(tried)} combinations, {how.segments} segments of history, {how.tasks} tasks"
        )
        tasks = tasks_of(lines, how.parts)
        with settings_of(work.spark, _SETTINGS):
            made = replayed(events(tables, lines), tasks, how, replay)
            made = made.persist(StorageLevel.DISK_ONLY)
            found = scored(made, _outside(lines))
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


def _spread(work: Work, lines: DataFrame, tried: int) -> TaskSplit:
    segments = lines.where(F.col("kind") == "round").agg(F.countDistinct("segment")).first()
    cores = work.spark.sparkContext.defaultParallelism
    return task_split(int(segments[0]) if segments else 0, tried, cores)


def _outside(lines: DataFrame) -> int:
    return lines.where((F.col("kind") == "round") & F.col("segment").isNull()).count()


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
