"""Isolation policies and pauses set while a cluster serves."""

import asyncio
from typing import Any

import pytest
from stories import served, story

from loadmanager.admin.isolation import Isolation, IsolationPolicy
from loadmanager.common.balancing_mode import BalancingModeRequests
from loadmanager.core.balancing import BalancingMode
from loadmanager.core.ids import Namespace
from loadmanager.leader.decisions import Decider
from loadmanager.ports.leading import LeaderElsewhere
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import NAMESPACE, Cluster, topic_in

CLUSTER = "standalone"


def isolation(agent: Agent) -> Isolation:
    app = agent.app
    return Isolation(agent.context, app.leading, app.unload_requests.unload, CLUSTER)


def only_on(broker: str, **more: str) -> IsolationPolicy:
    policy = {
        "namespaces": [NAMESPACE],
        "primary": [broker.partition(":")[0]],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "1", "usage_threshold": "100"},
        },
    }
    return IsolationPolicy.model_validate({**policy, **more})


@story()
async def test_a_new_policy_brings_its_namespace_to_its_brokers_and_leaves_others_alone(
    cluster: Cluster,
) -> None:
    boundaries = await cluster.make_namespace(6)
    others = await cluster.make_namespace(3, Namespace("other/ns"))
    every = [*boundaries.bundles, *others.bundles]
    for one in (boundaries, others):
        for bundle in one.bundles:
            await cluster.living[0].look_up(topic_in(one, bundle))
    await cluster.settled(every)
    before = {bundle: cluster.server(bundle) for bundle in others.bundles}
    chosen = cluster.hosts[0]
    await isolation(cluster.leader).put(CLUSTER, "gold", only_on(chosen.name))
    assert {cluster.server(bundle) for bundle in boundaries.bundles} == {chosen}
    assert {bundle: cluster.server(bundle) for bundle in others.bundles} == before
    await cluster.settled(every)


@story()
async def test_a_policy_that_nobody_can_meet_interrupts_nothing(cluster: Cluster) -> None:
    await served(cluster, 4)
    locks = cluster.lock_sessions()
    await isolation(cluster.leader).put(CLUSTER, "gold", only_on("nowhere:1"))
    assert cluster.lock_sessions() == locks
    assert len(cluster.warnings("isolation.bundle.unload_failed")) == 4


def test_bundles_that_no_broker_may_take_are_tried_ever_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = 0
    choose = Decider.choose

    def counted(self: Decider, bundles: Any, *more: Any) -> Any:
        nonlocal tries
        tries += 1
        return choose(self, bundles, *more)

    monkeypatch.setattr(Decider, "choose", counted)

    @story(checked=False)  # Nobody may serve the bundles at the end.
    async def tell(cluster: Cluster) -> None:
        nonlocal tries
        await served(cluster, 2)
        gone = next(one for one in cluster.living if not one.leads)
        await isolation(cluster.leader).put(CLUSTER, "gold", only_on(gone.host.name))
        await gone.kill()
        await asyncio.sleep(60.0)
        tries = 0
        await asyncio.sleep(60.0)
        assert 0 < tries <= 30  # Every 5 s, and after changes of the cluster.

    tell()


@story()
async def test_who_does_not_lead_sets_only_what_moves_nothing(cluster: Cluster) -> None:
    await served(cluster, 2)
    follower = next(agent for agent in cluster.living if not agent.leads)
    chosen = cluster.hosts[0].name
    with pytest.raises(LeaderElsewhere):
        await isolation(follower).put(CLUSTER, "gold", only_on(chosen))
    assert await isolation(follower).policies(CLUSTER) == {}
    await isolation(follower).put(CLUSTER, "gold", only_on(chosen, unload_scope="none"))
    assert set(await isolation(cluster.leader).policies(CLUSTER)) == {"gold"}


@story()
async def test_a_pause_outlives_the_leader_who_was_asked(cluster: Cluster) -> None:
    await served(cluster, 4)
    await BalancingModeRequests(cluster.leader.context).put(
        BalancingMode.PAUSED, by="ann", reason=""
    )
    former = cluster.leader
    await former.kill()

    def led_anew() -> bool:
        return any(agent.leads and agent.app.leading.leader_term for agent in cluster.living)

    await cluster.until(led_anew, within_s=60.0)
    heir = cluster.leader
    await asyncio.sleep(3.0)
    assert heir.metric("loadmanager_balancing", mode="paused") == 1
    assert heir.metric("loadmanager_balancing", mode="active") == 0
