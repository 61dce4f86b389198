"""A cost model that is published while a leader works, and what the leader makes of it."""

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from cost_samples import learned
from leader_at_work import LeaderAtWork, leader_at_work
from snapshot_samples import report
from waiting import eventually

from loadmanager.common.cost_model_watch import CostModelRequests
from loadmanager.config.offline import Wanted, planner_for
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.cost.document import CostDocument, pack_costs
from loadmanager.core.cost.learned import LearnedCost
from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.core.plan import Reason
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import Mode, PlannerSettings
from loadmanager.core.shedding import ThresholdShedder
from loadmanager.core.snapshot.decoding import decode_snapshot
from loadmanager.core.snapshot.rounds import run_rounds
from loadmanager.leader.preview import preview_round
from loadmanager.ports.administration import Conflict, Missing, Unfit
from loadmanager.ports.leading import PlanOverrides
from loadmanager.ports.lookup import Unavailable

B1, B2 = BrokerId("b1:8080"), BrokerId("b2:8080")
NS = Namespace("t/ns")
BUNDLES = Boundaries.even(NS, 8).bundles
PLANNER = Planner(
    shedder=ThresholdShedder(min_bytes_per_s=0.0), settings=PlannerSettings(settle_s=0.0)
)
COSTS = learned({"fast": 0.004, "slow": 0.4})
"""A message costs a hundred times as much on slow brokers: nothing should ever go there."""


async def hot_beside_slow(at_work: LeaderAtWork) -> None:
    """Register a fast broker that has everything, and a slow one that has nothing."""
    await at_work.create_namespace(Boundaries.even(NS, 8))
    fast = replace(report(B1, 0.8, dict.fromkeys(BUNDLES, 20e6)), broker_class="fast")
    await at_work.report(fast, replace(report(B2, 0.1, {}), broker_class="slow"))


@pytest.fixture
async def idle() -> AsyncIterator[LeaderAtWork]:
    async with leader_at_work(PLANNER, round_interval_s=3600) as at_work:
        await hot_beside_slow(at_work)
        yield at_work


async def sampled(at_work: LeaderAtWork) -> None:
    at_work.lead()
    await eventually(lambda: at_work.leading.leader_term and at_work.leader_term.look().averages)


async def published(at_work: LeaderAtWork, document: CostDocument | None) -> None:
    """Publish it, or remove what is published, and wait until the leader has it."""
    requests = CostModelRequests(at_work.context, "east")
    if document is None:
        await requests.remove()
    else:
        await requests.publish(document, force=False)
    await eventually(lambda: at_work.leader_term.look().costs == document)


async def test_the_leader_decides_by_what_is_published_from_then_on(idle: LeaderAtWork) -> None:
    await sampled(idle)
    preview_now = partial(preview_round, idle.leading)
    by_shares = await preview_now(PlanOverrides())
    assert {move.target for move in by_shares.plan.moves} == {B2}
    await published(idle, COSTS)
    by_costs = await preview_now(PlanOverrides())
    assert not by_costs.plan.moves
    assert Reason.NO_IMPROVEMENT in {one.reason for one in by_costs.plan.refusals}
    await published(idle, None)
    assert (await preview_now(PlanOverrides())).plan.moves == by_shares.plan.moves


async def test_rounds_move_nothing_to_brokers_that_cannot_bear_it() -> None:
    async with leader_at_work(PLANNER) as at_work:
        await hot_beside_slow(at_work)
        await at_work.write(znodes.COST_MODEL, pack_costs(COSTS))
        at_work.lead()
        await at_work.rounds(5)
        node = await at_work.hand.get(znodes.orders(B2))
        assert node is None or b"0x" not in node.data


async def test_settings_metrics_and_candidates_tell_which_costs_decide(idle: LeaderAtWork) -> None:
    await sampled(idle)
    account = idle.explainer.explain(BUNDLES[0])
    assert account.in_force.cost == {"model": "traffic_share"}
    assert account.explanation.candidates[0].refused is None
    assert metric(idle, "loadmanager_cost_model", kind="traffic_share") == 1
    await published(idle, COSTS)
    account = idle.explainer.explain(BUNDLES[0])
    assert account.in_force.cost == {"model": "learned", "madeAtMs": COSTS.made_at_ms}
    assert account.explanation.candidates[0].refused is Reason.NO_IMPROVEMENT
    assert account.explanation.candidates[0].score_with > 1.0
    assert metric(idle, "loadmanager_cost_model", kind="learned") == 1
    made_at_s = metric(idle, "loadmanager_cost_model_made_timestamp_seconds")
    assert made_at_s == COSTS.made_at_ms / 1000
    await idle.stop_leading()
    assert metric(idle, "loadmanager_cost_model", kind="learned") == 0


async def test_a_snapshot_decides_as_the_leader_would_have(idle: LeaderAtWork) -> None:
    await sampled(idle)
    await published(idle, COSTS)
    snapshot = decode_snapshot("live", await idle.explainer.snapshot())
    assert snapshot.costs == COSTS
    planner = planner_for("live", snapshot.in_force, Wanted())
    rng = np.random.default_rng(0)
    (without,) = run_rounds(snapshot, planner, rng)
    (with_costs,) = run_rounds(snapshot, planner.costing(snapshot.costs), rng)
    assert without.moves
    assert not with_costs.moves


async def test_a_model_that_cannot_be_read_leaves_the_former_one(idle: LeaderAtWork) -> None:
    await sampled(idle)
    await published(idle, COSTS)
    await idle.write(znodes.COST_MODEL, b'{"format": 1}')
    await eventually(lambda: metric(idle, "loadmanager_cost_model_unusable") == 1)
    assert metric(idle, "loadmanager_malformed_content_total", kind="cost_model") == 1
    assert idle.leader_term.look().costs == COSTS
    with pytest.raises(Unavailable, match="since_ms is missing"):
        await CostModelRequests(idle.context, "east").published()
    better = replace(COSTS, made_at_ms=COSTS.made_at_ms + 1)
    await published(idle, better)
    assert metric(idle, "loadmanager_cost_model_unusable") == 0


async def test_a_leader_that_never_read_a_good_one_goes_on_with_traffic_shares(
    idle: LeaderAtWork,
) -> None:
    await idle.write(znodes.COST_MODEL, b"no model")
    await sampled(idle)
    assert idle.leader_term.look().costs is None
    assert metric(idle, "loadmanager_cost_model", kind="traffic_share") == 1
    assert metric(idle, "loadmanager_cost_model_unusable") == 1


@pytest.mark.parametrize(
    "settings", [PlannerSettings(mode=Mode.PARITY), PlannerSettings(learned_costs=False)]
)
def test_a_mode_or_setting_keeps_to_traffic_shares(settings: PlannerSettings) -> None:
    assert isinstance(Planner().costing(COSTS).cost, LearnedCost)
    assert not isinstance(Planner(settings=settings).costing(COSTS).cost, LearnedCost)


async def test_a_preview_of_other_settings_computes_with_the_same_costs(idle: LeaderAtWork) -> None:
    await sampled(idle)
    await published(idle, COSTS)
    preview_now = partial(preview_round, idle.leading)
    other = await preview_now(PlanOverrides(settings=("margin=0.01",)))
    assert other.in_force.cost["model"] == "learned"
    assert not other.plan.moves
    without = await preview_now(PlanOverrides(settings=("learned_costs=false",)))
    assert without.in_force.cost == {"model": "traffic_share"}
    assert without.plan.moves


async def test_costs_of_another_cluster_are_published_only_by_force(idle: LeaderAtWork) -> None:
    requests = CostModelRequests(idle.context, "west")
    with pytest.raises(Conflict, match="learned from cluster 'east', this one is 'west'"):
        await requests.publish(COSTS, force=False)
    with pytest.raises(Missing):
        await requests.published()
    await requests.publish(COSTS, force=True)
    assert await requests.published() == COSTS


async def test_what_is_no_document_is_not_published(idle: LeaderAtWork) -> None:
    requests = CostModelRequests(idle.context, "east")
    with pytest.raises(Unfit, match="until_ms"):
        await requests.publish(replace(COSTS, until_ms=0), force=False)
    with pytest.raises(Missing):
        await requests.remove()


def metric(at_work: LeaderAtWork, name: str, **labels: str) -> float:
    return at_work.registry.get_sample_value(name, labels) or 0.0
