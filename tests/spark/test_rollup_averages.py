"""The leader's averages, computed from what real sidecars wrote: the same to the bit."""

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from loadmanager.core.averages import LONG_SAMPLES, SHORT_SAMPLES
from loadmanager.pipeline.rollup.leader_averages import (
    LeaderHistory,
    average_checks,
    latest_averages,
)
from loadmanager.pipeline.rollup.rollup_tables import AVERAGE_CHECKS, AVERAGES
from loadmanager.pipeline.rollup.scope import Scope
from loadmanager.pipeline.store import Store

if TYPE_CHECKING:
    from history_sinks import Archive

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

NAMES = ("rounds", "ticks", "bundle_averages", "broker_load", "bundle_load", "cuts")
Row = dict[str, Any]


@pytest.fixture(scope="module")
def archive_and_history(
    live_ingested: tuple["Archive", Store],
) -> tuple["Archive", LeaderHistory]:
    """Return what sidecars told, and the tables that their files became."""
    archive, store = live_ingested
    return archive, LeaderHistory(**{name: store.table(name) for name in NAMES})


@pytest.fixture(scope="module")
def checks(archive_and_history: tuple["Archive", LeaderHistory]) -> list[Row]:
    """Return the checks of all base rounds, in their order."""
    made = AVERAGE_CHECKS.conform(average_checks(archive_and_history[1], Scope()))
    return sorted((row.asDict() for row in made.collect()), key=lambda row: int(row["round"]))


def bases(archive: "Archive") -> list[Mapping[str, Any]]:
    """Return the lines of bundles: one for each base round of such a small cluster."""
    return sorted(archive.lines("bundles"), key=lambda line: int(line["round"]))


def test_every_base_but_the_first_is_confirmed_to_the_bit(
    archive_and_history: tuple["Archive", LeaderHistory], checks: list[Row]
) -> None:
    recorded = bases(archive_and_history[0])
    assert [row["round"] for row in checks] == [line["round"] for line in recorded[1:]]
    assert [row["ticks"] for row in checks] == [
        after["tick"] - before["tick"] for before, after in pairwise(recorded)
    ]
    assert all(row["ticks"] > 0 and row["bundles"] > 0 for row in checks)
    assert [(row["equal"], row["missing_reports"]) for row in checks] == [
        (row["bundles"], 0) for row in checks
    ]
    assert {row["largest_difference"] for row in checks} == {0.0}


def test_only_bundles_that_were_cut_are_left_out(
    archive_and_history: tuple["Archive", LeaderHistory], checks: list[Row]
) -> None:
    (cut,) = archive_and_history[0].lines("cut")
    without = [row["cut"] for row in checks]
    assert set(without) == {0, len(cut["parts"]) + 1}
    assert without.count(0) >= len(without) - 2
    recorded = {
        line["round"]: len(line["bundles"]["bundle"]) for line in bases(archive_and_history[0])
    }
    for row in checks:
        assert row["bundles"] >= recorded[row["round"]] - row["cut"]


def test_the_last_averages_go_on_from_the_last_base_to_the_last_tick(
    archive_and_history: tuple["Archive", LeaderHistory],
) -> None:
    archive, history = archive_and_history
    found = {row["bundle"]: row for row in AVERAGES.conform(latest_averages(history)).collect()}
    last = bases(archive)[-1]
    ticks = [line for line in archive.lines("tick") if line["sampled"]]
    more = ticks[-1]["tick"] - last["tick"]
    assert {row["ticks"] for row in found.values()} == {more}
    reports = {(one["broker"], one["reported_at_ms"]): one for one in archive.lines("report")}
    expected = by_hand(last, archive, reports)
    assert found.keys() == expected.keys()
    for bundle, (samples, mean) in expected.items():
        assert found[bundle]["long_samples"] == samples
        assert found[bundle]["long_msgs_in_per_s"] == mean


def by_hand(
    base: Mapping[str, Any], archive: "Archive", reports: Mapping[Any, Any]
) -> dict[str, tuple[int, float]]:
    """Return samples and long-term messages in of each bundle after the last tick."""
    (sink,) = (one for one in archive.sinks if one.count("term"))
    averages: dict[str, tuple[int, float]] = {}
    standing: dict[str, dict[str, float]] = {}
    counting = False
    for line in sink.lines("tick", "bundles"):
        if line["kind"] == "bundles":
            counting = line["round"] == base["round"]
            told = line["bundles"]
            averages = {
                bundle: (samples, mean)
                for bundle, samples, mean in zip(
                    told["bundle"], told["long_samples"], told["long_msgs_in_per_s"], strict=True
                )
            }
            continue
        for broker, at_ms in zip(*line["taken"].values(), strict=True):
            columns = reports[broker, at_ms]["bundles"]
            standing[broker] = dict(zip(columns["bundle"], columns["msgs_in_per_s"], strict=True))
        for broker in line["left"]:
            standing.pop(broker, None)
        if line["sampled"] and counting:
            for bundle, rate in (item for one in standing.values() for item in one.items()):
                count, mean = averages.get(bundle, (0, 0.0))
                grown = min(count + 1, LONG_SAMPLES)
                averages[bundle] = (grown, ((grown - 1) * mean + rate) / grown)
    return averages


def test_a_report_that_history_lacks_is_told_and_harms_one_stretch(
    archive_and_history: tuple["Archive", LeaderHistory],
) -> None:
    archive, history = archive_and_history
    second = bases(archive)[2]
    (sink,) = (one for one in archive.sinks if one.count("term"))
    listing = {
        (one["broker"], one["reported_at_ms"])
        for one in archive.lines("report")
        if one["bundles"]["bundle"]
    }
    taken = next(
        report
        for line in sink.lines("tick")
        if line["sampled"] and line["tick"] > second["tick"]
        for report in zip(*line["taken"].values(), strict=True)
        if report in listing
    )
    without = {
        name: table.where(f"NOT (broker = '{taken[0]}' AND reported_at_ms = {taken[1]})")
        for name, table in (
            ("broker_load", history.broker_load),
            ("bundle_load", history.bundle_load),
        )
    }
    lacking = LeaderHistory(**{name: without.get(name, getattr(history, name)) for name in NAMES})
    rows = average_checks(lacking, Scope()).collect()
    harmed = [row for row in rows if row["equal"] < row["bundles"]]
    assert [row["missing_reports"] for row in rows if row["missing_reports"]] == [1]
    assert [row["missing_reports"] for row in harmed] == [1]
    assert harmed[0]["largest_difference"] > 0.0


def test_averages_of_a_simulation_are_those_that_were_recorded(ingested: Store) -> None:
    history = LeaderHistory(**{name: ingested.table(name) for name in NAMES})
    assert average_checks(history, Scope()).isEmpty()
    last = ingested.table("bundle_averages")
    newest = last.agg({"round": "max"}).first()
    assert newest is not None
    recorded = {row["bundle"]: row for row in last.where(last["round"] == newest[0]).collect()}
    found = {row["bundle"]: row for row in AVERAGES.conform(latest_averages(history)).collect()}
    assert found.keys() == recorded.keys()
    for bundle, row in found.items():
        assert row["ticks"] == 0
        assert row["short_samples"] <= SHORT_SAMPLES
        for name in ("long_bytes_out_per_s", "short_msgs_in_per_s", "long_samples", "topics"):
            assert row[name] == recorded[bundle][name]
