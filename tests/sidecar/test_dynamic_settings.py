import asyncio
import json

from stories import served, story

from loadmanager.core import znodes
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import Cluster


async def configured(cluster: Cluster, **values: str) -> None:
    content = json.dumps({name.replace("__", "."): value for name, value in values.items()})
    operator = await cluster.operator()
    if znodes.CONFIGURATION in cluster.service.dump():
        await operator.set(znodes.CONFIGURATION, content.encode())
    else:
        await operator.create(znodes.CONFIGURATION, content.encode())


def shedder(agent: Agent) -> str:
    leader_term = agent.app.leading.leader_term
    assert leader_term is not None
    return type(leader_term.look().planner.shedder).__name__


@story()
async def test_another_strategy_and_rhythm_are_used_from_the_next_round(cluster: Cluster) -> None:
    assert shedder(cluster.leader) == "ThresholdShedder"
    boundaries = await served(cluster, 6)
    places = {bundle: cluster.server(bundle) for bundle in boundaries.bundles}
    await configured(
        cluster, shedding__strategy="AvgShedder", loadBalancerSheddingIntervalMinutes="1"
    )
    await cluster.until(lambda: shedder(cluster.leader) == "AvgShedder")
    await cluster.settled(boundaries.bundles)
    assert {bundle: cluster.server(bundle) for bundle in boundaries.bundles} == places
    before = rounds_of(cluster.leader)
    await cluster.until(lambda: rounds_of(cluster.leader) > before + 1, within_s=125.0)
    assert rounds_of(cluster.leader) <= before + 2


@story()
async def test_a_leader_that_waits_for_an_hour_follows_within_seconds(cluster: Cluster) -> None:
    await configured(cluster, leader__round_interval_s="3600")
    settings = cluster.leader.app.settings
    await cluster.until(lambda: settings.now.rhythm.round_interval_s == 3600.0)
    await asyncio.sleep(30.0)
    before = rounds_of(cluster.leader)
    await asyncio.sleep(30.0)
    assert rounds_of(cluster.leader) == before
    await configured(cluster, leader__round_interval_s="2")
    await cluster.until(lambda: rounds_of(cluster.leader) > before, within_s=10.0)


def rounds_of(agent: Agent) -> float:
    leader_term = agent.app.leading.leader_term
    assert leader_term is not None
    return leader_term.decision_log.rounds


@story()
async def test_every_sidecar_follows_what_can_be_read_and_goes_back_to_its_own(
    cluster: Cluster,
) -> None:
    tunings = [agent.app.settings for agent in cluster.living]

    async def waits(wait_s: float, **values: str) -> None:
        await configured(cluster, **values)
        await cluster.until(lambda: all(one.now.lookup_wait_s == wait_s for one in tunings))

    await waits(1.5, lookup__wait_s="1.5", ownership__drain_deadline_s="7")
    assert {one.now.drain_deadline_s for one in tunings} == {7.0}
    await waits(2.0, leader__round_interval_s="often", lookup__wait_s="2")
    await waits(3.0, leader__round_interval_s="often", lookup__wait_s="3")
    told = cluster.warnings("configuration.key.refused")
    assert len(told) == len(tunings)  # Once each.
    assert {one["name"] for one in told} == {"leader.round_interval_s"}
    assert all("expected a number from 0.1 to 3600" in one["error"] for one in told)
    await cluster.write(znodes.CONFIGURATION, b"{malformed")
    await cluster.until(lambda: cluster.warnings("znode.content.refused"))
    assert {one.now.lookup_wait_s for one in tunings} == {3.0}
    await waits(5.0)


@story()
async def test_a_later_leader_has_the_settings_from_its_first_round(cluster: Cluster) -> None:
    await configured(cluster, shedding__strategy="TransferShedder")
    await cluster.until(lambda: shedder(cluster.leader) == "TransferShedder")
    former = cluster.leader
    await former.leave()
    await cluster.until(lambda: any(agent.app.leading.leader_term for agent in cluster.living))
    assert cluster.leader is not former
    assert shedder(cluster.leader) == "TransferShedder"
