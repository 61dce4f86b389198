import asyncio
import functools

import pytest
from stories import served, story

from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, parse_bundle
from loadmanager.core.orders import Orders, encode_orders
from loadmanager.core.wire.policies import encode_boundaries
from tests.testbed.faults.cluster import NAMESPACE, Cluster, topic_in
from tests.testbed.faults.host import Host


@story()
async def test_bundles_of_a_deleted_namespace_are_given_up(cluster: Cluster) -> None:
    boundaries = await served(cluster, 4)
    operator = await cluster.operator()
    await operator.delete(znodes.local_policies(NAMESPACE))
    await cluster.until(lambda: not cluster.lock_sessions(), within_s=ROUND_S + 1.0)
    assert all(cluster.servers(bundle) == [] for bundle in boundaries.bundles)
    assert all(not cluster.orders(host).bundles for host in cluster.hosts)
    assert cluster.warnings("namespace.bundles.missing")
    # The round looks at stray locks again before it reports what it found.
    first = boundaries.bundles[0]
    await cluster.until(lambda: "vanished_namespace" in _about(cluster, first), within_s=2.0)


@story()
async def test_a_namespace_with_malformed_boundaries_keeps_its_owners(cluster: Cluster) -> None:
    await served(cluster, 4)
    before = cluster.lock_sessions()
    await cluster.write(znodes.local_policies(NAMESPACE), b"{")
    await cluster.until(lambda: cluster.leader.metric("loadmanager_rounds_total", outcome="quiet"))
    start = cluster.leader.metric("loadmanager_rounds_total", outcome="quiet")
    await cluster.until(
        lambda: cluster.leader.metric("loadmanager_rounds_total", outcome="quiet") >= start + 3
    )
    assert cluster.lock_sessions() == before


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
    operator = await cluster.operator()
    await operator.delete(znodes.lock(bundle))
    await asking
    await cluster.settled(boundaries.bundles)


@pytest.mark.parametrize("how", ["deleted", "emptied", "garbage"])
def test_orders_spoilt_by_hand_are_written_again_within_a_round(how: str) -> None:
    @story()
    async def tell(cluster: Cluster) -> None:
        boundaries = await served(cluster, 6)
        host = next(h for h in cluster.hosts if h.serving)
        before, path = cluster.orders(host), znodes.orders(host.name)
        if how == "deleted":
            await (await cluster.operator()).delete(path)
        else:
            empty = encode_orders(Orders(before.epoch))
            await cluster.write(path, empty if how == "emptied" else b"{")
        await _told_within_a_round(cluster, "orders_changed", host.name)
        assert cluster.orders(host).bundles == before.bundles
        await cluster.settled(boundaries.bundles)

    tell()


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
