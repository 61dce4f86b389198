"""The bound of a round in steps of work: what it does not reach, what reaches it, and what then."""

from dataclasses import replace

import numpy as np
import pytest
from leader_round import JOINT, LeaderRounds
from snapshot_samples import whole_snapshot
from synthetic_cluster import SHAPES, Shape, synthetic_brokers
from worst_rounds import FULL, WORST, cluster, planner

from loadmanager.config.strategies import Wanted, planner_for
from loadmanager.core.cluster import ClusterView
from loadmanager.core.joint import search
from loadmanager.core.memory import RoundMemory
from loadmanager.core.plan import Reason, cut_short
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.policies import IsolationPolicy, Policies
from loadmanager.core.snapshot.codec import decode_snapshot, encode_snapshot, in_force

NOWHERE = IsolationPolicy(namespaces=("t/n",), primary=("nowhere",))
NOTHING_TO_DO = {"idle bundles", "bundles that fit nowhere"}


def decided(view: ClusterView, by: Planner, *, draining: bool = False) -> Plan:
    return by.round(view, RoundMemory(), np.random.default_rng(1), draining=draining)


def bounded(by: Planner, steps: int) -> Planner:
    return replace(by, settings=replace(by.settings, steps_per_round=steps))


def used_up(plan: Plan) -> str:
    return cut_short(plan.refusals)


@pytest.mark.parametrize("worst", sorted(WORST.keys() - NOTHING_TO_DO))
def test_a_round_that_may_take_fewer_steps_makes_the_first_moves_and_names_why(worst: str) -> None:
    view, by = WORST[worst](400)
    whole = decided(view, bounded(by, 10**12))
    assert not used_up(whole)
    cut = next(
        plan
        for steps in (300_000, 100_000, 30_000)
        if used_up(plan := decided(view, bounded(by, steps)))
    )
    assert cut.moves == whole.moves[: len(cut.moves)]
    assert len(cut.moves) < len(whole.moves) or not whole.moves
    assert used_up(cut).startswith(f"{FULL} with 400 bundles took ")
    assert Reason.WORK_BUDGET in {one.reason for one in cut.refusals if one.subject}


@pytest.mark.parametrize("worst", sorted(NOTHING_TO_DO))
def test_many_bundles_that_no_move_is_worth_do_not_reach_the_bound(worst: str) -> None:
    view, by = WORST[worst](20_000)
    plan = decided(view, bounded(by, 3_000_000))
    assert not used_up(plan)
    assert FULL not in {one.source for one in plan.moves}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_thousand_brokers_with_a_hundred_thousand_bundles_do_not_reach_it(shape: Shape) -> None:
    network = (replace(one, network_kbit=1e6) for one in synthetic_brokers(1000, shape))
    _, _, plan = LeaderRounds(network, JOINT).round(1.0)
    assert len(plan.moves) > 500
    assert not used_up(plan)


def test_the_best_of_many_bundles_move_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a broker with more bundles than are weighed at once, in a part after the first."""
    view = cluster(3, 60, lambda k: 5_000.0 if k == 59 else 1_000.0, 300.0)
    whole = decided(view, planner())
    monkeypatch.setattr(search, "_WEIGHED", 8)
    assert decided(view, planner()).moves[0] == whole.moves[0]
    assert len(decided(view, planner()).moves) >= len(whole.moves)


def test_a_broker_of_whose_bundles_a_part_was_weighed_is_not_called_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "_WEIGHED", 8)
    view, by = WORST["bundles alike"](400)
    view = replace(view, policies=Policies(isolation={"all": NOWHERE}))
    plan = decided(view, bounded(by, 4_000))
    assert "of 4,000 steps" in used_up(plan)
    assert [one.reason for one in plan.refusals if one.subject == FULL] == [Reason.WORK_BUDGET]


def test_draining_ends_with_the_steps_of_a_round() -> None:
    view, by = WORST["an anti-affinity group"](100)
    brokers = view.brokers
    draining = np.array([name == FULL for name in brokers.names])
    view = replace(view, brokers=brokers.having(draining=draining))
    plan = decided(view, bounded(by, 20_000), draining=True)
    assert 0 < len(plan.moves) < 50
    assert FULL in used_up(plan)


def test_a_recorded_round_that_was_cut_short_decides_the_same() -> None:
    view, by = WORST["bundles alike"](400)
    by = bounded(by, 100_000)
    cut = decided(view, by)
    assert used_up(cut)
    recorded = encode_snapshot(replace(whole_snapshot(), in_force=in_force(by)))
    again = planner_for("it", decode_snapshot("it", recorded).in_force, Wanted())
    assert again.settings.steps_per_round == 100_000
    repeated = decided(view, again)
    assert (repeated.moves, repeated.refusals) == (cut.moves, cut.refusals)
