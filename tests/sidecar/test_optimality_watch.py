import math
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from leader_at_work import AT_ONCE, B1, HOT, THRESHOLD, LeaderAtWork, leader_at_work
from waiting import eventually

from loadmanager.core.planner import Planner
from loadmanager.leader import optimality as optimality_watch

OBSERVING = replace(THRESHOLD, settings=replace(AT_ONCE, observe=True))
FIGURES = ("largest", "bound", "bound_within_policies", "gap", "gap_within_policies", "excess")


@pytest.fixture
async def sidecar() -> AsyncIterator[LeaderAtWork]:
    async with leader_at_work(OBSERVING, reports=HOT) as at_work:
        yield at_work


def shown(sidecar: LeaderAtWork, figure: str) -> float:
    value = sidecar.registry.get_sample_value(f"loadmanager_optimality_{figure}")
    assert value is not None
    return value


async def assessed(sidecar: LeaderAtWork) -> None:
    sidecar.lead()
    await eventually(
        lambda: sidecar.leading.leader_term and sidecar.leader_term.optimality_watch.last
    )


async def test_each_round_shows_the_distance_from_the_best(sidecar: LeaderAtWork) -> None:
    assert all(math.isnan(shown(sidecar, figure)) for figure in FIGURES)
    await assessed(sidecar)
    # Eight equal bundles of a tenth each: three lie together on one of three brokers.
    await eventually(lambda: shown(sidecar, "bound") == pytest.approx(0.3))
    assert (shown(sidecar, "largest"), shown(sidecar, "gap")) == pytest.approx((0.8, 5 / 3))
    told = sidecar.explainer.assessment()
    assert told is not None
    assert told.optimality.gap == pytest.approx(5 / 3)
    assert 1 <= told.round <= sidecar.leader_term.decision_log.rounds
    assert sidecar.explainer.explain(B1).assessment is not None
    await sidecar.stop_leading()
    assert all(math.isnan(shown(sidecar, figure)) for figure in FIGURES)


async def test_it_is_left_out_where_it_would_take_too_much_of_the_leaders_time(
    sidecar: LeaderAtWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def slow(*given: Any) -> None:
        asked.append(given)
        time.sleep(0.01)

    # It may take place again after 10,000 s: no machine is so slow that a round comes then.
    monkeypatch.setattr(optimality_watch, "_SHARE_OF_TIME", 1e-6)
    monkeypatch.setattr(Planner, "optimality", slow)
    sidecar.lead()
    await sidecar.rounds(5)
    assert len(asked) == 1


async def test_an_error_in_it_is_counted_and_takes_nothing_from_the_round(
    sidecar: LeaderAtWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_given: Any) -> None:
        raise ArithmeticError("no bound")

    monkeypatch.setattr(Planner, "optimality", broken)
    sidecar.lead()
    await sidecar.rounds(4)
    value = sidecar.registry.get_sample_value
    assert (value("loadmanager_unexpected_errors_total", {"place": "round"}) or 0) >= 1
    assert value("loadmanager_rounds_total", {"outcome": "failed"}) is None
    assert sidecar.explainer.assessment() is None
