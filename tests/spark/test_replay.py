"""Recorded rounds through other strategies, spread over Spark's tasks."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import replayed
from history_sinks import finished, lines_in
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from replay_events import events_of
from small_history import REPLAYED

from loadmanager.core.history.schema import KINDS, Stream
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.replay import job as replay
from loadmanager.pipeline.replay.combinations import SPREAD_ANEW, combinations, spread_anew
from loadmanager.pipeline.replay.events import Event
from loadmanager.pipeline.replay.job import Tables, events, index
from loadmanager.pipeline.replay.measures import SETTLE_S
from loadmanager.pipeline.replay.replay_run import Rules
from loadmanager.pipeline.replay.segment_replay import SegmentReplay
from loadmanager.pipeline.store import Store

if TYPE_CHECKING:
    from history_sinks import Archive
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
PAIRS, SETTINGS = REPLAYED["strategy"], REPLAYED["setting"]
ROUNDS = 180
"""Of `small_history`: three hours of one a minute."""
Row = Mapping[str, Any]


class Done:
    def __init__(self, store: Store, said: list[str]) -> None:
        self.said = said
        self.facts = store.facts("replay") or {}
        self.rounds = rows(store.table("replay_rounds"), "combination", "at_ms")
        self.scores = rows(store.table("replay_scores"), "rank")
        self.trust = rows(store.table("replay_trust"), "combination")


def rows(frame: DataFrame, *by: str) -> list[Row]:
    return [row.asDict() for row in frame.orderBy(*by).collect()]


def beside(ingested: Store, spark: "SparkSession", folder: Path) -> Store:
    for each in Path(ingested.out).iterdir():
        (folder / each.name).symlink_to(each)
    return Store(spark, str(folder))


@pytest.fixture(name="done", scope="module")
def done_fixture(worked: tuple[Store, dict[str, list[str]]]) -> Done:
    store, said = worked
    return Done(store, said["replay"])


def pure(history: Path, done: Done) -> Iterator[Row]:
    every = list(lines_in(*finished(history)))
    reports = {
        (one["broker"], one["reported_at_ms"]): one for one in every if one["kind"] == "report"
    }
    rounds = (one for one in every if KINDS[one["kind"]].stream is Stream.ROUNDS)
    told = sorted(rounds, key=lambda one: int(one["seq"]))
    rules = Rules(hand_over_s=done.facts["hand_over_s"], settle_s=SETTLE_S)
    play = SegmentReplay(combinations=spread_anew(combinations(PAIRS, SETTINGS)), rules=rules)
    starts = [one["seq"] for one in told if one["kind"] == "bundles" and one["round"] % 60 == 1]
    for segment in sorted({row["segment"] for row in done.rounds}):
        hour = int(segment.rsplit(" ", 1)[1])
        first, after = [*starts, len(told) + 1][hour : hour + 2]
        kept = [one for one in told if first <= one["seq"] < after]
        for line in play.lines(segment, events_of(reports, kept)):
            yield {"segment": segment, **asdict(line)}


def test_tasks_give_what_rounds_give_without_spark(done: Done, small_history: Path) -> None:
    want = sorted(pure(small_history, done), key=lambda row: (row["combination"], row["at_ms"]))
    assert len(done.rounds) == len(want) == ROUNDS * 7
    for got, row in zip(done.rounds, want, strict=True):
        same(got, row)


def same(got: Row, want: Row) -> None:
    """Sums may be of another order."""
    for name, value in want.items():
        close = isinstance(value, float | list)
        assert got[name] == (pytest.approx(value, rel=1e-9, abs=1e-9) if close else value), name


def test_one_row_of_scores_for_each_combination_best_first(done: Done) -> None:
    names = {row["name"] for row in done.scores}
    assert names == {
        "(recorded)",
        "as recorded",
        SPREAD_ANEW,
        *(f"{pair} margin={margin}" for pair in PAIRS for margin in ("0.02", "0.1")),
    }
    penalties = [row["penalty"] for row in done.scores]
    assert penalties == sorted(penalties)
    recorded = next(row for row in done.scores if row["name"] == "(recorded)")
    assert recorded["gap"] == 0.0
    assert {row["rounds"] for row in done.scores} == {ROUNDS // 2}
    anew = next(row for row in done.scores if row["name"] == SPREAD_ANEW)
    for row in done.scores:
        like = recorded if row["name"] in {"(recorded)", "as recorded"} else anew
        assert row["gap"] == pytest.approx(row["penalty"] - like["penalty"])
        mine = [
            one
            for one in done.rounds
            if one["combination"] == row["combination"] and not one["settling"]
        ]
        assert row["moves"] == sum(one["moves"] for one in mine)
        assert row["covered_s"] == pytest.approx(sum(one["weight_s"] for one in mine))


def test_every_combination_is_told_how_far_to_trust_it(done: Done) -> None:
    assert len(done.trust) == 6
    for row in done.trust:
        assert row["bases"] == row["reproduced"] == ROUNDS // 15
        assert (row["rounds"], row["refused"], row["difference"]) == (ROUNDS, 0, "")
        assert (row["level"], row["covered_s"]) == ("none", pytest.approx(ROUNDS * 60, abs=180))
        assert row["because"].startswith("it needs 4.0 h of history and 20 decisions")
        assert json.loads(row["refused_by_reason"]) == {}
        assert 0 < row["cpu_changed_error"] < 0.2


def test_what_became_of_it_is_said(done: Done) -> None:
    assert done.said[0] == f"{ROUNDS} rounds: {ROUNDS} replayed, 0 refused"
    assert done.said[1] == "12 of 12 base rounds were decided again exactly as recorded"
    *table, advice = done.said[2:]
    assert advice.startswith("No advice: it needs 4.0 h of history and 20 decisions to move a ")
    assert done.facts["advice"]["text"] == advice
    assert table[0].split()[:3] == ["combination", "penalty", "max/mean"]
    assert [line.split()[0] for line in table[1:]] == [str(rank) for rank in range(1, 8)]
    assert done.facts["refused"] == {}
    assert done.facts["replayed"] == ROUNDS


def test_no_rounds_are_empty_tables(ingested: Store, spark: "SparkSession", tmp_path: Path) -> None:
    store = beside(ingested, spark, tmp_path)
    since = datetime(2030, 1, 1, tzinfo=UTC)
    said = replay.run(Work(spark=spark, store=store, since=since))
    assert said[0] == "0 rounds: 0 replayed, 0 refused"
    assert store.table("replay_scores").count() == store.table("replay_trust").count() == 0


def without(ingested: Store, table: str, seq: int) -> Tables:
    def tables(name: str) -> DataFrame:
        frame = ingested.table(name)
        return frame.where(F.col("seq") != seq) if name == table else frame

    return tables


def test_a_gap_ends_a_segment_and_the_next_base_begins_one(ingested: Store) -> None:
    lines = rows(ingested.table("rounds").where("round = 20"), "seq")
    missing = lines[0]["seq"]
    found = rows(
        index(without(ingested, "rounds", missing), 6 * 3600.0).where("kind = 'round'"), "round"
    )
    segments = {row["round"]: row["segment"] for row in found}
    assert len(set(segments.values())) == 3
    assert all(segments[one] == segments[1] for one in range(1, 20))
    assert all(segments[one] is None for one in range(21, 31))
    assert all(segments[one] == segments[31] for one in range(31, ROUNDS + 1))


def test_segments_begin_with_the_bundles_of_a_base(ingested: Store) -> None:
    found = rows(index(ingested.table, 1800.0).where("segment is not null"), "seq")
    firsts: dict[str, Row] = {}
    for row in found:
        firsts.setdefault(row["segment"], row)
    assert [row["kind"] for row in firsts.values()] == ["bundles"] * 6
    assert [row["round"] for row in firsts.values()] == [1, 31, 61, 91, 121, 151]


def test_what_real_sidecars_told_comes_to_tasks(live_ingested: tuple["Archive", Store]) -> None:
    archive, store = live_ingested
    lines = index(store.table, 6 * 3600.0)
    found = rows(events(store.table, lines), "segment", "seq", "rank")
    assert len({row["segment"] for row in found}) == 1
    kinds = {"report", "tick", "bundles", "round", "move", "task", "cut"}
    assert {row["kind"] for row in found} == kinds
    play = SegmentReplay(combinations=combinations(PAIRS, []))
    got = list(play.lines("live", map(event, found)))
    want = list(play.lines("live", replayed.events(archive)))
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        same(asdict(one), asdict(other))
    verdicts = [line.reproduced for line in got if line.reproduced is not None]
    assert verdicts
    assert all(verdicts)
    assert not any(line.refused for line in got)


def event(row: Row) -> Event:
    numbers = np.array(row["numbers"], dtype=np.float64).T
    return Event(row["kind"], json.loads(row["body"]), tuple(row["names"]), numbers)
