import math
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from history_sinks import Archive
from leader_at_work import AT_ONCE, B1, HOT, LeaderAtWork, leader_at_work
from waiting import eventually

from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.shadow import Shadow, after_round
from loadmanager.core.shedding import AvgShedder, ThresholdShedder
from loadmanager.leader import decisions as leader_decisions

SETTINGS = PlannerSettings(settle_s=0.0, cool_down_s=0.0)
IDLE = Planner(shedder=AvgShedder(), settings=replace(SETTINGS, shedding=False))
SHEDS = Planner(shedder=ThresholdShedder(min_bytes_per_s=0.0), settings=SETTINGS)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_decisions, "_SHARE_OF_TIME", 1e9)


@pytest.fixture
async def sidecar() -> AsyncIterator[LeaderAtWork]:
    async with leader_at_work(IDLE, reports=HOT) as at_work:
        yield at_work


def beside(sidecar: LeaderAtWork, **planners: Planner) -> None:
    sidecar.settings.now = replace(sidecar.settings.now, shadows=planners)


def shown(sidecar: LeaderAtWork, figure: str) -> float | None:
    labels = {"strategy": "ThresholdShedder"}
    return sidecar.registry.get_sample_value(f"loadmanager_shadow_{figure}", labels)


async def shadowed(sidecar: LeaderAtWork, rounds: int) -> Shadow:
    def there() -> Shadow | None:
        if sidecar.leading.leader_term is None:
            return None
        found = sidecar.leader_term.optimality_watch.shadows.get("ThresholdShedder")
        return found if found is not None and len(found.rounds) >= rounds else None

    await eventually(there)
    found = there()
    assert found is not None
    return found


async def test_a_shadow_strategy_would_have_evened_it_out(sidecar: LeaderAtWork) -> None:
    beside(sidecar, ThresholdShedder=SHEDS)
    sidecar.lead()
    shadow = await shadowed(sidecar, 10)
    first, last = shadow.rounds[0], shadow.rounds[-1]
    assert first.gap == first.active_gap == last.active_gap == pytest.approx(5 / 3)
    assert last.gap < first.gap / 2
    assert (shown(sidecar, "gap") or 9) < first.gap
    assert (shown(sidecar, "regret") or 0) > 0
    assert (shown(sidecar, "moves_total") or 0) >= shadow.moves > 0
    told = sidecar.explainer.shadows()
    assert (told.active, [one.strategy for one in told.shadows]) == (
        "AvgShedder",
        ["ThresholdShedder"],
    )
    # Nothing of it was ordered.
    assert set(sidecar.leader_term.tasks.assigned.values()) <= {B1}
    assert (
        sidecar.registry.get_sample_value("loadmanager_rounds_total", {"outcome": "moved"}) is None
    )
    await sidecar.stop_leading()
    assert shown(sidecar, "gap") is None


async def test_strategies_come_and_go_with_the_configuration(sidecar: LeaderAtWork) -> None:
    sidecar.lead()
    await sidecar.rounds(2)
    assert sidecar.explainer.shadows().shadows == []
    beside(sidecar, ThresholdShedder=SHEDS)
    before = await shadowed(sidecar, 5)
    assert before.away
    # Other settings are another strategy, which begins with what is there now.
    beside(sidecar, ThresholdShedder=replace(SHEDS, shedder=ThresholdShedder(threshold=0.9)))
    shadows = sidecar.leader_term.optimality_watch.shadows
    await eventually(lambda: not shadows["ThresholdShedder"].away)
    assert shown(sidecar, "gap") is not None
    beside(sidecar)
    await eventually(lambda: not sidecar.explainer.shadows().shadows)
    assert shown(sidecar, "gap") is None


async def test_an_error_of_one_strategy_is_counted_and_stops_nothing_else(
    sidecar: LeaderAtWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(shadow: Shadow, planner: Planner, *more: Any) -> Shadow:
        told = after_round(shadow, planner, *more)
        strategy = type(planner.shedder).__name__
        return {"ThresholdShedder": told}[strategy]

    monkeypatch.setattr(leader_decisions, "after_round", fails)
    beside(sidecar, AvgShedder=IDLE, ThresholdShedder=SHEDS)
    sidecar.lead()
    await shadowed(sidecar, 2)
    value = sidecar.registry.get_sample_value
    assert (value("loadmanager_unexpected_errors_total", {"place": "round"}) or 0) >= 1
    assert value("loadmanager_rounds_total", {"outcome": "failed"}) is None


async def test_history_has_a_line_of_each_strategy_and_round() -> None:
    archive = Archive()
    async with leader_at_work(IDLE, build=archive.kept, reports=HOT) as sidecar:
        beside(sidecar, ThresholdShedder=SHEDS)
        sidecar.lead()
        await shadowed(sidecar, 4)
    lines = list(archive.lines("shadow"))
    assert {line["strategy"] for line in lines} == {"ThresholdShedder"}
    assert [line["round"] for line in lines] == [
        line["round"] for line in archive.lines("optimality")
    ]


OBSERVING = replace(SHEDS, settings=replace(AT_ONCE, observe=True))
FIGURES = ("largest", "bound", "bound_within_policies", "gap", "gap_within_policies", "excess")


@pytest.fixture
async def resting() -> AsyncIterator[LeaderAtWork]:
    async with leader_at_work(OBSERVING, reports=HOT) as at_work:
        yield at_work


def distance(resting: LeaderAtWork, figure: str) -> float:
    value = resting.registry.get_sample_value(f"loadmanager_optimality_{figure}")
    assert value is not None
    return value


async def assessed(resting: LeaderAtWork) -> None:
    resting.lead()
    await eventually(
        lambda: resting.leading.leader_term and resting.leader_term.optimality_watch.last
    )


async def test_each_round_shows_the_distance_from_the_best(resting: LeaderAtWork) -> None:
    assert all(math.isnan(distance(resting, figure)) for figure in FIGURES)
    await assessed(resting)
    # Eight equal bundles of a tenth each: three lie together on one of three brokers.
    await eventually(lambda: distance(resting, "bound") == pytest.approx(0.3))
    assert (distance(resting, "largest"), distance(resting, "gap")) == pytest.approx((0.8, 5 / 3))
    told = resting.explainer.optimality().optimality
    assert told is not None
    assert told.gap == pytest.approx(5 / 3)
    assert 1 <= told.round <= resting.leader_term.decision_log.rounds
    assert resting.explainer.account(B1).assessment is not None
    await resting.stop_leading()
    assert all(math.isnan(distance(resting, figure)) for figure in FIGURES)


async def test_optimality_is_left_out_where_it_would_take_too_much_of_the_leaders_time(
    resting: LeaderAtWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def slow(*given: Any) -> None:
        asked.append(given)
        time.sleep(0.01)

    # It may take place again after 10,000 s: no machine is so slow that a round comes then.
    monkeypatch.setattr(leader_decisions, "_SHARE_OF_TIME", 1e-6)
    monkeypatch.setattr(Planner, "optimality", slow)
    resting.lead()
    await resting.rounds(5)
    assert len(asked) == 1


async def test_an_error_in_optimality_is_counted_and_takes_nothing_from_the_round(
    resting: LeaderAtWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_given: Any) -> None:
        raise ArithmeticError("no bound")

    monkeypatch.setattr(Planner, "optimality", broken)
    resting.lead()
    await resting.rounds(4)
    value = resting.registry.get_sample_value
    assert (value("loadmanager_unexpected_errors_total", {"place": "round"}) or 0) >= 1
    assert value("loadmanager_rounds_total", {"outcome": "failed"}) is None
    assert resting.explainer.optimality().optimality is None
