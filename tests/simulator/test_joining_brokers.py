"""What is reported of a broker that joins while a simulation goes on."""

from collections.abc import Callable, Mapping

import pytest
from simulated_worlds import EXACT, broker, scenario

from loadmanager.core.averages import BundleAverages
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BundleId
from loadmanager.core.load import LoadReport
from loadmanager.core.planner import Plan
from loadmanager.simulator.engine import simulate
from loadmanager.simulator.run import MoveRecord
from loadmanager.simulator.strategies import Strategy, planner_for

PAIR = Strategy.parse("threshold+least_long_term_message_rate")


class Reports:
    """A witness that keeps the reports alone."""

    def __init__(self) -> None:
        self.told: list[tuple[float, LoadReport]] = []

    def reported(self, at_s: float, report: LoadReport) -> None:
        """Keep a report."""
        self.told.append((at_s, report))

    def round_done(
        self,
        at_s: float,
        view: ClusterView,
        plan: Plan,
        averages: Callable[[], Mapping[BundleId, BundleAverages]],
    ) -> None:
        """Let a round pass."""

    def moved(self, record: MoveRecord) -> None:
        """Let a move pass."""


def reports_of(name: str, *events: dict[str, object], step_s: float, seed: int) -> Reports:
    """Return what the agent of ``name`` tells in five minutes."""
    brokers = [{"name": "b", "count": 2}, {"name": "late", "count": 1, "joined": False}]
    played = scenario(
        brokers=brokers, duration_s=300.0, step_s=step_s, noise=EXACT, events=list(events)
    )
    reports, planner = Reports(), planner_for(played, PAIR)
    simulate(played, planner, strategy=PAIR.name, seed=seed, witness=reports)
    reports.told = [one for one in reports.told if one[1].broker == broker(name)]
    return reports


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("step_s", [2.0, 10.0])
def test_no_report_of_a_broker_is_older_than_the_broker(step_s: float, seed: int) -> None:
    join = {"kind": "join", "at_s": 130.0, "brokers": ["late-1"]}
    told = reports_of("late-1", join, step_s=step_s, seed=seed).told
    first_s, first = told[0]
    assert first.started_at_ms == 130_000
    assert 130.0 <= first_s < 130.0 + step_s
    assert all(one.reported_at_ms >= one.started_at_ms for _, one in told)


@pytest.mark.parametrize("seed", range(4))
def test_no_report_of_a_new_life_is_older_than_that_life(seed: int) -> None:
    # It is down for less than a step: what stands in its node is replaced without a gap.
    restart = {"kind": "restart", "at_s": 121.0, "brokers": ["b-1"], "down_s": 6.0}
    told = reports_of("b-1", {**restart, "drained": False}, step_s=10.0, seed=seed).told
    lives = {one.started_at_ms for _, one in told}
    assert lives == {0, 127_000}
    assert all(0 <= one.started_at_ms <= one.reported_at_ms for _, one in told)
    assert min(at_s for at_s, one in told if one.started_at_ms) <= 130.0
