import asyncio
import functools
from collections.abc import Sequence

import pytest
from stories import crash, now_s, served, served_beside, story

from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, parse_bundle
from loadmanager.core.orders import Orders, encode_orders
from loadmanager.core.wire.policies import encode_boundaries
from loadmanager.leader.reconciliation import CLAIMED_WITHIN_FRACTION, REST_S
from loadmanager.ports.coordination import Create, Operation, Stat
from loadmanager.ports.lookup import Unavailable
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import NAMESPACE, Cluster, topic_in
from tests.testbed.faults.host import Host


@story()
async def test_bundles_of_a_deleted_namespace_are_given_up(cluster: Cluster) -> None:
    boundaries = await served(cluster, 4)
    await cluster.delete(znodes.local_policies(NAMESPACE))
    await cluster.until(lambda: not cluster.lock_sessions(), within_s=ROUND_S + 1.0)
    assert all(cluster.servers(bundle) == [] for bundle in boundaries.bundles)
    assert all(not cluster.orders(host).bundles for host in cluster.hosts)
    assert cluster.warnings("namespace.bundles.missing")
    # The round looks at stray locks again before it reports what it found.
    first = boundaries.bundles[0]
    await cluster.until(lambda: "vanished_namespace" in _about(cluster, first), within_s=2.0)


ROUND_S = 2.0


def _serves_alone(cluster: Cluster, host: Host, bundle: BundleId) -> bool:
    return cluster.servers(bundle) == [host]


def _about(cluster: Cluster, subject: str) -> str:
    leader_term = cluster.leader_term
    return " ".join(decision.detail for decision in leader_term.decision_log.about(subject))


async def _told_within_a_round(cluster: Cluster, kind: str, subject: str) -> None:
    await cluster.until(
        lambda: any(
            entry["kind"] == kind and entry["subject"] == subject
            for event in ("cluster.state.repaired", "cluster.state.inconsistent")
            for entry in cluster.warnings(event)
        ),
        # A quarter of a round until it counts as stuck, and a second to look again.
        within_s=1.25 * ROUND_S + 1.5,
    )
    assert cluster.leader.metric("loadmanager_disagreements", kind=kind) >= 1
    assert kind in _about(cluster, subject)


@story(checked=False)
async def test_a_lock_that_nobody_lists_is_told_within_a_round(cluster: Cluster) -> None:
    boundaries = await served(cluster, 4)
    stray = boundaries.bundles[0].replace("0x00000000", "0x00000001")
    operator = await cluster.operator()
    await operator.create(f"{znodes.LOCKS}/{stray}", b"whose?", ephemeral=True)
    await _told_within_a_round(cluster, "stray_lock", stray)
    assert cluster.leader.metric("loadmanager_stray_locks") == 1
    (warning, *_) = cluster.warnings("bundle.lock.stray")
    assert warning["bundle"] == stray
    await operator.delete(f"{znodes.LOCKS}/{stray}")
    await cluster.until(
        lambda: cluster.leader.metric("loadmanager_disagreements", kind="stray_lock") == 0
    )
    assert cluster.leader.metric("loadmanager_stray_locks") == 0
    elsewhere = parse_bundle("nobody/knows/0x00000000_0xffffffff")
    await cluster.hold_lock(elsewhere)
    await _told_within_a_round(cluster, "stray_lock", elsewhere)


@story(2, checked=False)
async def test_the_locks_of_many_namespaces_are_listed_at_once(cluster: Cluster) -> None:
    operator = await cluster.operator()
    for i in range(40):
        bundle = f"tenant{i % 4}/empty{i}/0x00000000_0xffffffff"
        await operator.create(f"{znodes.LOCKS}/{bundle}", b"whose?", ephemeral=True)
    leader = cluster.leader
    await cluster.until(lambda: leader.metric("loadmanager_stray_locks") == 40)
    leader.coordination.delay_replies(1.0)
    await operator.delete(f"{znodes.LOCKS}/tenant0/empty0/0x00000000_0xffffffff")
    # A round until it looks, and twice three answers, not twice 45, with a second in between.
    within_s = ROUND_S + 2 * 3.0 + 1.0 + 1.0
    await cluster.until(lambda: leader.metric("loadmanager_stray_locks") == 39, within_s=within_s)


@story()
async def test_a_stuck_hand_over_is_reported_within_a_round(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(1)
    (bundle,) = boundaries.bundles
    await cluster.hold_lock(bundle)
    asking = asyncio.ensure_future(cluster.living[0].look_up(topic_in(boundaries, bundle)))
    await _told_within_a_round(cluster, "stuck_hand_over", bundle)
    assert cluster.warnings("bundle.order.repeated")
    await cluster.delete(znodes.lock(bundle))
    await asking
    await cluster.settled(boundaries.bundles)


@pytest.mark.parametrize("how", ["deleted", "emptied", "garbage"])
@story()
async def test_orders_spoilt_by_hand_are_soon_written_again(cluster: Cluster, how: str) -> None:
    boundaries = await served(cluster, 6)
    host = next(h for h in cluster.hosts if h.serving)
    before, path = cluster.orders(host), znodes.orders(host.name)
    if how == "deleted":
        await cluster.delete(path)
    else:
        empty = encode_orders(Orders(before.epoch))
        await cluster.write(path, empty if how == "emptied" else b"{")
    await _told_within_a_round(cluster, "orders_changed", host.name)
    assert cluster.orders(host).bundles == before.bundles
    await cluster.settled(boundaries.bundles)


@story(split={"enabled": False})
async def test_a_bundle_split_by_hand_is_replaced_within_a_round(cluster: Cluster) -> None:
    await served(cluster, 2)
    finer = Boundaries.even(NAMESPACE, 4)
    await cluster.write(znodes.local_policies(NAMESPACE), encode_boundaries(finer))
    await cluster.until(lambda: cluster.warnings("bundle.split.adopted"), within_s=ROUND_S)
    await cluster.settled(finer.bundles)
    ordered = [bundle for host in cluster.hosts for bundle in cluster.orders(host).bundles]
    assert sorted(ordered) == sorted(finer.bundles)


@story(checked=False, split={"enabled": False})
async def test_parts_whose_split_was_taken_back_are_recalled(cluster: Cluster) -> None:
    boundaries = await served(cluster, 4)
    coarser = Boundaries.even(NAMESPACE, 2)
    await cluster.write(znodes.local_policies(NAMESPACE), encode_boundaries(coarser))
    await _told_within_a_round(cluster, "unknown_range", boundaries.bundles[0])
    await cluster.until(lambda: not cluster.lock_sessions())
    for bundle in coarser.bundles:
        await cluster.living[0].look_up(topic_in(coarser, bundle))
    await cluster.settled(coarser.bundles)


@story()
async def test_of_a_cluster_that_agrees_nothing_is_told(cluster: Cluster) -> None:
    boundaries = await served(cluster, 6)
    bundle = boundaries.bundles[0]
    for host in (*cluster.hosts, *cluster.hosts):
        await cluster.move(bundle, host)
        await cluster.until(functools.partial(_serves_alone, cluster, host, bundle))
        await asyncio.sleep(0.7)
    assert not cluster.warnings("cluster.state.repaired")
    assert not cluster.warnings("cluster.state.inconsistent")


WITHIN_S = CLAIMED_WITHIN_FRACTION * SESSION_S


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
    boundaries, agent = await served_beside(cluster, 6, serving=False)
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
    boundaries, former = await served_beside(cluster, 6, serving=False)
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
    boundaries, agent = await served_beside(cluster, 6, serving=False)
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
    boundaries, agent = await served_beside(cluster, 6, serving=False)
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


TICK_S = 1.0
WAIT_S = 10.0
"""`leader.return_wait_s` unless configured."""


def _places(cluster: Cluster, boundaries: Boundaries) -> dict[BundleId, Host]:
    return {bundle: cluster.server(bundle) for bundle in boundaries.bundles}


async def _even_cluster(cluster: Cluster, bundles: int) -> tuple[Boundaries, dict[BundleId, Host]]:
    """Place bundles evenly, and let the cluster grow older than a session."""
    boundaries = await served(cluster, bundles)
    await asyncio.sleep(SESSION_S)
    places = _places(cluster, boundaries)
    assert set(places.values()) == set(cluster.hosts)
    return boundaries, places


async def _outage(agents: Sequence[Agent], for_s: float, apart_s: float = 0.3) -> None:
    for agent in agents:
        agent.coordination.suspend()
    await asyncio.sleep(for_s)
    for agent in agents:
        agent.coordination.reconnect()
        await asyncio.sleep(apart_s)


def _largest_share(cluster: Cluster, boundaries: Boundaries) -> float:
    owned = [sum(b in host.serving for b in boundaries.bundles) for host in cluster.hosts]
    return max(owned) / len(boundaries.bundles)


@story(2)
async def test_of_two_brokers_the_first_back_does_not_take_it_all(cluster: Cluster) -> None:
    boundaries, places = await _even_cluster(cluster, 8)
    await _outage(cluster.agents, for_s=SESSION_S * 2, apart_s=3.0)
    await cluster.settled(boundaries.bundles)
    assert _places(cluster, boundaries) == places


@story(4)
async def test_lookups_are_not_answered_with_who_is_back_first(cluster: Cluster) -> None:
    boundaries, places = await _even_cluster(cluster, 8)
    first, *others = cluster.agents
    away = [bundle for bundle, host in places.items() if host is not first.host]
    for agent in cluster.agents:
        agent.coordination.suspend()
    await asyncio.sleep(SESSION_S * 2)
    first.coordination.reconnect()
    await cluster.until(lambda: first.leads and first.app.leading.leader_term)
    lookup = asyncio.ensure_future(first.look_up(topic_in(boundaries, away[0])))
    await asyncio.sleep(1.0)
    assert first.metric("loadmanager_bundles_awaiting_return") == len(away)
    for agent in others:
        agent.coordination.reconnect()
    assert (await lookup).broker == places[away[0]].name
    await cluster.settled(boundaries.bundles)
    assert _places(cluster, boundaries) == places
    assert first.metric("loadmanager_bundles_awaiting_return") == 0
    assert cluster.warnings("broker.return.awaited")


@story(4)
async def test_half_of_the_brokers_share_all_after_the_wait(cluster: Cluster) -> None:
    boundaries, places = await _even_cluster(cluster, 12)
    killed_at_s = now_s()
    victims = [a for a in cluster.agents if not a.leads][:2]
    for agent in victims:
        await crash(agent)
    await asyncio.sleep(SESSION_S + WAIT_S / 2)
    # Whose session ends first counts as a single crash until the other's ends as well.
    kept_back = {places[bundle] for bundle in boundaries.bundles if not cluster.servers(bundle)}
    assert kept_back
    assert kept_back <= {agent.host for agent in victims}
    await cluster.settled(boundaries.bundles)
    assert now_s() - killed_at_s <= SESSION_S + WAIT_S + TICK_S + 1.0
    assert _largest_share(cluster, boundaries) <= 0.7


@story(4)
async def test_the_last_broker_gets_everything_after_the_wait(cluster: Cluster) -> None:
    boundaries, _ = await _even_cluster(cluster, 8)
    killed_at_s = now_s()
    last, *others = cluster.agents
    for agent in others:
        await crash(agent)
    await cluster.settled(boundaries.bundles, within_s=SESSION_S * 2 + WAIT_S + TICK_S + 1.0)
    assert now_s() - killed_at_s >= WAIT_S
    assert set(_places(cluster, boundaries).values()) == {last.host}


@story(4)
async def test_a_single_crash_is_not_waited_for(cluster: Cluster) -> None:
    boundaries, _ = await _even_cluster(cluster, 12)
    for victim in (next(a for a in cluster.agents if not a.leads), cluster.leader):
        killed_at_s = now_s()
        await crash(victim)
        await cluster.settled(boundaries.bundles)
        took_s = now_s() - killed_at_s
        assert took_s <= SESSION_S + TICK_S + 1.0
    assert not cluster.warnings("broker.return.awaited")


@story(3)
async def test_a_flapping_connection_does_not_prolong_the_wait(cluster: Cluster) -> None:
    boundaries, _ = await _even_cluster(cluster, 6)
    leader = cluster.leader
    victim = next(a for a in cluster.agents if not a.leads)
    await crash(victim)
    killed_at_s = now_s()
    while any(not cluster.servers(bundle) for bundle in boundaries.bundles):
        leader.coordination.suspend()
        await asyncio.sleep(0.2)
        leader.coordination.reconnect()
        await asyncio.sleep(2.0)
        assert now_s() - killed_at_s <= SESSION_S + WAIT_S + TICK_S + 3.0
    await cluster.settled(boundaries.bundles)


@story(3, leader={"return_wait_s": 0.0})
async def test_with_a_wait_of_nothing_everything_is_placed_at_once(cluster: Cluster) -> None:
    boundaries, _ = await _even_cluster(cluster, 6)
    killed_at_s = now_s()
    for agent in [a for a in cluster.agents if not a.leads]:
        await crash(agent)
    await cluster.settled(boundaries.bundles)
    assert now_s() - killed_at_s <= SESSION_S + TICK_S + 1.0
