import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from stories import each_loss, follower, place_all, served, story

from loadmanager.admin.isolation import Isolation, IsolationPolicy
from loadmanager.admin.namespaces import Namespaces
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import Namespace, TopicName, namespace_of
from loadmanager.leader.decisions import Decider
from loadmanager.ports.coordination import Check, Create, Operation, SetData
from loadmanager.ports.lookup import (
    LeaderElsewhere,
    NamespaceTaken,
    NamespaceUnknown,
    NotLeader,
    Unavailable,
)
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import NAMESPACE, Cluster, topic_in
from tests.testbed.memory.link import LossPlace

NS = Namespace("acme/prod")
GONE_WITHIN_S = 20.0


def namespaces(agent: Agent) -> Namespaces:
    return Namespaces(agent.context, agent.app.leading, "standalone")


async def create(cluster: Cluster, count: int) -> Boundaries:
    boundaries = Boundaries.even(NS, count)
    while True:
        try:
            await namespaces(cluster.leader).put(boundaries, {})
        except Unavailable:
            await asyncio.sleep(0.5)
        except NamespaceTaken:
            return boundaries
        else:
            return boundaries


async def delete(cluster: Cluster) -> None:
    while True:
        try:
            await namespaces(cluster.leader).delete(NS, force=True)
        except (Unavailable, LeaderElsewhere):
            await asyncio.sleep(0.5)
        except NamespaceUnknown:
            return
        else:
            return


def stands(cluster: Cluster) -> tuple[bool, bool]:
    nodes = cluster.service.nodes
    return znodes.policies(NS) in nodes, znodes.local_policies(NS) in nodes


def held(cluster: Cluster) -> set[str]:
    locked = {bundle for bundle in cluster.lock_sessions() if namespace_of(bundle) == NS}
    served = {one for host in cluster.hosts for one in host.serving if namespace_of(one) == NS}
    return locked | served


@story()
async def test_a_deleted_namespace_is_let_go_and_can_be_made_anew(cluster: Cluster) -> None:
    topics = await place_all(cluster, await create(cluster, 4))
    outcomes: list[str] = []

    async def keep_looking_up(agent: Agent, topic: TopicName) -> None:
        while True:
            try:
                outcomes.append((await agent.look_up(topic)).broker)
            except (NamespaceUnknown, Unavailable, NotLeader) as error:
                outcomes.append(type(error).__name__)
            await asyncio.sleep(0.01)

    lookers = [asyncio.ensure_future(keep_looking_up(a, topics[0])) for a in cluster.living]
    await asyncio.sleep(0.2)
    await namespaces(cluster.leader).delete(NS, force=False)
    assert stands(cluster) == (False, False)
    await cluster.until(lambda: not held(cluster), within_s=GONE_WITHIN_S)
    await asyncio.sleep(3.0)
    assert held(cluster) == set()
    assert set(outcomes[-3:]) == {"NamespaceUnknown"}
    for looker in lookers:
        looker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looker
    await place_all(cluster, await create(cluster, 2))


@story()
async def test_a_namespace_is_made_again_once_its_locks_are_gone(cluster: Cluster) -> None:
    await place_all(cluster, await create(cluster, 4))
    owner = follower(cluster)
    # It hears of nothing any more, so its locks stand until its session ends.
    owner.coordination.freeze()
    deleting = asyncio.ensure_future(namespaces(cluster.leader).delete(NS, force=True))
    await cluster.until(lambda: stands(cluster) == (False, False))
    anew = Boundaries.even(NS, 4)
    with pytest.raises(NamespaceTaken, match="of its bundles are not let go yet"):
        await namespaces(cluster.leader).put(anew, {})
    assert stands(cluster) == (False, False)
    await cluster.until(lambda: not cluster.lock_sessions(), within_s=2 * SESSION_S)
    await namespaces(cluster.leader).put(anew, {})
    await deleting
    owner.coordination.thaw()
    await cluster.ready()
    await place_all(cluster, anew)


@story()
async def test_a_lock_taken_as_its_namespace_is_made_is_seen(cluster: Cluster) -> None:
    (bundle, *_) = (await create(cluster, 4)).bundles
    agent, operator = cluster.leader, await cluster.operator()
    await namespaces(agent).delete(NS, force=True)
    taken: list[asyncio.Task[object]] = []

    def take_before(operations: Sequence[Operation]) -> None:
        """Do as somebody who made it, took a lock, and deleted it, all in that moment."""
        folder = znodes.lock_folder(bundle)
        creates = any(isinstance(one, Check) and one.path == folder for one in operations)
        agent.coordination.delay_commits_s = 0.1 if creates and not taken else 0.0
        if agent.coordination.delay_commits_s:
            lock = Create(znodes.lock(bundle), b"{}", ephemeral=True)
            taking = operator.commit([SetData(folder, b""), lock])
            taken.append(asyncio.ensure_future(taking))

    agent.coordination.before_commit = take_before
    with pytest.raises(NamespaceTaken, match="not let go"):
        await namespaces(agent).put(Boundaries.even(NS, 4), {})
    assert taken
    assert stands(cluster) == (False, False)
    await operator.delete(znodes.lock(bundle))


@story()
async def test_a_leader_that_dies_as_it_deletes_leaves_nothing_behind(cluster: Cluster) -> None:
    await place_all(cluster, await create(cluster, 4))
    leader = cluster.leader
    deleting = asyncio.ensure_future(namespaces(leader).delete(NS, force=True))
    await cluster.until(lambda: stands(cluster) == (False, False))
    await leader.kill()
    deleting.cancel()
    with contextlib.suppress(asyncio.CancelledError, Unavailable):
        await deleting
    await cluster.until(lambda: not held(cluster), within_s=60.0)


WRITES = 11


@pytest.mark.parametrize(("number", "place"), each_loss(WRITES))
@story(2)
async def test_no_lost_message_halves_it(cluster: Cluster, number: int, place: LossPlace) -> None:
    losses = cluster.losses
    losses.place, losses.lost = place, frozenset({losses.writes + number})
    boundaries = await create(cluster, 2)
    assert stands(cluster) == (True, True)
    await place_all(cluster, boundaries)
    await delete(cluster)
    assert stands(cluster) == (False, False)
    await cluster.until(lambda: not held(cluster), within_s=60.0)
    assert losses.writes > max(losses.lost)


CLUSTER = "standalone"


def isolation(agent: Agent) -> Isolation:
    app = agent.app
    return Isolation(agent.context, app.leading, app.bundle_requests.unload, CLUSTER)


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
async def test_a_policy_brings_its_namespace_to_its_brokers(cluster: Cluster) -> None:
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


def test_bundles_nobody_may_take_are_tried_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
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
