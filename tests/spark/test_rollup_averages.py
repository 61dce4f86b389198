"""The leader's averages, computed from what real sidecars wrote: the same to the bit."""

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.pipeline.rollup.average_replay import AVERAGES, COUNTS
from loadmanager.pipeline.rollup.leader_averages import LeaderHistory, latest_averages
from loadmanager.pipeline.rollup.rollup_tables import AVERAGES as AVERAGES_TABLE
from loadmanager.pipeline.store import Store

if TYPE_CHECKING:
    from history_sinks import Archive
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

NAMES = ("rounds", "ticks", "bundle_averages", "bundle_load")
COMPARED = (*AVERAGES, *COUNTS)
Row = dict[str, Any]


def averages_in(history: LeaderHistory) -> dict[str, dict[str, Row]]:
    found: dict[str, dict[str, Row]] = {}
    for row in AVERAGES_TABLE.conform(latest_averages(history)).collect():
        found.setdefault(row["cluster"], {})[row["bundle"]] = row.asDict()
    return found


def test_at_each_base_they_are_the_leaders_to_the_bit(
    spark: "SparkSession", live_ingested: tuple["Archive", Store]
) -> None:
    """The history before each base round but the first is given as that of another cluster."""
    archive, store = live_ingested
    recorded = sorted(archive.lines("bundles"), key=lambda line: int(line["round"]))
    ends = spark.createDataFrame(
        [(f"until-{line['round']}", line["round"], line["tick"]) for line in recorded[1:]],
        "until string, end_round bigint, end_tick bigint",
    )
    before = {"rounds": "round < end_round", "bundle_averages": "round < end_round",
              "ticks": "tick < end_tick OR tick = end_tick AND sampled"}  # fmt: skip

    def each(name: str) -> "DataFrame":
        rows = store.table(name).crossJoin(ends).where(before.get(name, "true"))
        return rows.withColumn("cluster", F.col("until"))

    computed = averages_in(LeaderHistory(**{name: each(name) for name in NAMES}))
    (cut,) = archive.lines("cut")
    off: Counter[str] = Counter()
    for former, line in pairwise(recorded):
        found, told = computed[f"until-{line['round']}"], line["bundles"]
        assert {row["ticks"] for row in found.values()} == {line["tick"] - former["tick"]}
        assert line["tick"] > former["tick"]
        for place, bundle in enumerate(told["bundle"]):
            wanted = [told[name][place] for name in COMPARED]
            if [found.get(bundle, {}).get(name) for name in COMPARED] != wanted:
                off[bundle] += 1
    # What a split divides no report shows; it may happen while a base round is recorded.
    assert set(off) <= {*cut["parts"], cut["whole"]}
    assert max(off.values()) <= 2
    assert len(recorded) > 8


def test_without_ticks_they_are_those_that_were_recorded(ingested: Store) -> None:
    (found,) = averages_in(LeaderHistory(**{name: ingested.table(name) for name in NAMES})).values()
    last = ingested.table("bundle_averages")
    newest = last.agg({"round": "max"}).first()
    assert newest is not None
    recorded = {row["bundle"]: row for row in last.where(last["round"] == newest[0]).collect()}
    assert found.keys() == recorded.keys()
    for bundle, row in found.items():
        assert row["ticks"] == 0
        assert [row[name] for name in COMPARED] == [recorded[bundle][name] for name in COMPARED]
