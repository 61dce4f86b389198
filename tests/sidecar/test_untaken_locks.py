import asyncio
from collections.abc import Sequence

import pytest
from stories import served, story

from loadmanager.core import znodes
from loadmanager.leader.untaken_orders import REST_S, TAKEN_WITHIN_FRACTION
from loadmanager.ports.coordination import Create, Operation, Stat
from loadmanager.ports.lookup import Unavailable
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import Cluster, topic_in

WITHIN_S = TAKEN_WITHIN_FRACTION * SESSION_S


def stop_taking(agent: Agent, patch: pytest.MonkeyPatch) -> asyncio.Event:
    commit, sent = agent.coordination.commit, asyncio.Event()

    async def hang(operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        if any(isinstance(o, Create) and o.path.startswith(znodes.LOCKS) for o in operations):
            await sent.wait()
        return await commit(operations)

    patch.setattr(agent.coordination, "commit", hang)
    return sent


@story()
async def test_what_a_broker_does_not_take_goes_to_another(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    boundaries = await served(cluster, 6)
    agent = next(one for one in cluster.living if not one.leads)
    bundle = next(b for b in boundaries.bundles if cluster.server(b) is not agent.host)
    with monkeypatch.context() as patch:
        stop_taking(agent, patch)
        await cluster.move(bundle, agent.host)
        await cluster.until(lambda: not cluster.servers(bundle))
        await cluster.until(
            lambda: cluster.servers(bundle) not in ([], [agent.host]), within_s=WITHIN_S + 2.0
        )
        (told,) = cluster.warnings("broker.locks.not_acquired")
        assert told["broker"] == agent.host.name
        assert cluster.leader.metric("loadmanager_brokers_passed_over") == 1
        # It is named by the next rounds, and gets nothing meanwhile.
        await asyncio.sleep(5.0)
        kind = {"kind": "locks_untaken"}
        assert cluster.leader.metric("loadmanager_disagreements", **kind) == 1
        look = cluster.leader_term.look()
        assert look.view.brokers.draining[look.view.row(agent.host.name)]
        account = cluster.leader_term.decision_log.about(agent.host.name)
        assert any("locks_untaken" in decision.detail for decision in account)
    await asyncio.sleep(REST_S)
    look = cluster.leader_term.look()
    assert not look.view.brokers.draining[look.view.row(agent.host.name)]


@story(2)
async def test_a_sole_broker_is_kept(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    boundaries = await cluster.make_namespace(1)
    (bundle,) = boundaries.bundles
    first, second = cluster.living
    for agent in (first, second):
        stop_taking(agent, monkeypatch)
    asking = asyncio.ensure_future(first.look_up(topic_in(boundaries, bundle)))
    await asyncio.sleep(4 * SESSION_S)
    # One of the two at most: else nobody would be left to try.
    assert cluster.leader.metric("loadmanager_brokers_passed_over") <= 1
    asking.cancel()


@story()
async def test_a_lock_that_somebody_holds_is_no_fault_of_the_broker(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(2)
    bundle = boundaries.bundles[0]
    operator = await cluster.operator()
    await operator.ensure(znodes.lock_folder(bundle))
    await cluster.hold_lock(bundle)
    asking = asyncio.ensure_future(cluster.living[0].look_up(topic_in(boundaries, bundle)))
    await asyncio.sleep(3 * SESSION_S)
    assert not cluster.warnings("broker.locks.not_acquired")
    asking.cancel()
    await operator.delete(znodes.lock(bundle))
    await cluster.until(lambda: cluster.servers(bundle), within_s=5.0)


@story()
async def test_a_registration_answers_for_no_former_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    boundaries = await served(cluster, 6)
    former = next(one for one in cluster.living if not one.leads)
    bundle = next(b for b in boundaries.bundles if cluster.server(b) is not former.host)
    stop_taking(former, monkeypatch)
    await cluster.move(bundle, former.host)
    await asyncio.sleep(WITHIN_S - 0.5)
    await former.kill()
    newcomer = cluster.start(former.host)
    stop_taking(newcomer, monkeypatch)
    await asyncio.sleep(WITHIN_S - 1.0)
    assert newcomer.app.member.registered
    assert not cluster.warnings("broker.locks.not_acquired")
    await cluster.until(lambda: cluster.warnings("broker.locks.not_acquired"), within_s=2.0)


@story(2)
async def test_a_broker_gets_bundles_again_once_no_other_could_take_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    boundaries = await served(cluster, 6)
    agent = next(one for one in cluster.living if not one.leads)
    other = next(host for host in cluster.hosts if host is not agent.host)
    bundle = next(b for b in boundaries.bundles if cluster.server(b) is other)
    sent = stop_taking(agent, monkeypatch)
    await cluster.move(bundle, agent.host)
    await cluster.until(lambda: cluster.warnings("broker.locks.not_acquired"), within_s=15.0)
    await cluster.until(lambda: cluster.servers(bundle) == [other])
    sent.set()
    stranger_epoch = 2**63 - 1
    await other.broker.renew_lease(agent_epoch=stranger_epoch, until_s=None, incarnation=None)
    await cluster.until(
        lambda: all(cluster.servers(b) == [agent.host] for b in boundaries.bundles),
        within_s=REST_S / 2,
    )


@story(leader={"round_interval_s": 300.0})
async def test_each_rest_is_longer_until_the_broker_takes_a_lock(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    boundaries = await served(cluster, 6)
    agent = next(one for one in cluster.living if not one.leads)
    bundle = next(b for b in boundaries.bundles if cluster.server(b) is not agent.host)
    with monkeypatch.context() as patch:
        stop_taking(agent, patch)
        for number in range(3):
            await cluster.move(bundle, agent.host)
            await cluster.until(
                lambda number=number: len(cluster.warnings("broker.locks.not_acquired")) > number,  # type: ignore[misc] # bound now
                within_s=2 * WITHIN_S,
            )
            await asyncio.sleep(REST_S * 2**number + 1.0)
    rests = [told["rest_s"] for told in cluster.warnings("broker.locks.not_acquired")]
    assert rests == [REST_S, 2 * REST_S, 4 * REST_S]


@story(1)
async def test_a_lock_taken_too_late_is_dropped_again(cluster: Cluster) -> None:
    (bundle,) = (boundaries := await cluster.make_namespace(1)).bundles
    agent = cluster.agents[0]

    def freeze_and_be_late(operations: Sequence[Operation]) -> None:
        lock = znodes.lock(bundle)
        if any(isinstance(one, Create) and one.path == lock for one in operations):
            agent.host.freeze_broker()
            # The lease has run out by then, and the session has not.
            agent.coordination.delay_commits_s = 0.95 * SESSION_S
            agent.coordination.before_commit = None

    agent.coordination.before_commit = freeze_and_be_late
    with pytest.raises(Unavailable):
        await agent.look_up(topic_in(boundaries, bundle))
    agent.coordination.delay_commits_s = 0.0
    await cluster.until(lambda: not agent.app.member.registered, 2 * SESSION_S)
    agent.host.thaw_broker()
    await cluster.until(lambda: cluster.servers(bundle), 2 * SESSION_S)
