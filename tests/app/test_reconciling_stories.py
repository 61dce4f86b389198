"""What does not agree is mended, or told, within a round or two."""

from stories import place_all, story

from loadmanager.core import znodes
from loadmanager.faults.cluster import NAMESPACE, Cluster


@story()
async def test_the_bundles_of_a_deleted_namespace_are_given_up_everywhere(
    cluster: Cluster,
) -> None:
    boundaries = await cluster.make_namespace(4)
    await place_all(cluster, boundaries)
    operator = await cluster.operator()
    await operator.delete(znodes.local_policies(NAMESPACE))
    await cluster.until(lambda: not cluster.lock_sessions(), within_s=20)
    assert all(cluster.servers(bundle) == [] for bundle in boundaries.bundles)
    assert all(not cluster.orders(host).bundles for host in cluster.hosts)
    assert cluster.warnings("namespace.bundles.vanished")


@story()
async def test_a_namespace_whose_boundaries_are_garbage_keeps_its_owners(
    cluster: Cluster,
) -> None:
    boundaries = await cluster.make_namespace(4)
    await place_all(cluster, boundaries)
    before = cluster.lock_sessions()
    await cluster.write(znodes.local_policies(NAMESPACE), b"{")
    await cluster.until(lambda: cluster.leader.metric("loadmanager_rounds_total", outcome="quiet"))
    start = cluster.leader.metric("loadmanager_rounds_total", outcome="quiet")
    await cluster.until(
        lambda: cluster.leader.metric("loadmanager_rounds_total", outcome="quiet") >= start + 3
    )
    assert cluster.lock_sessions() == before


@story(checked=False)
async def test_a_lock_that_nobody_lists_is_told_at_the_second_round(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(4)
    await place_all(cluster, boundaries)
    stray = boundaries.bundles[0].replace("0x00000000", "0x00000001")
    operator = await cluster.operator()
    await operator.create(f"{znodes.LOCKS}/{stray}", b"whose?", ephemeral=True)
    await cluster.until(lambda: cluster.leader.metric("loadmanager_stray_locks") == 1, within_s=20)
    (warning, *_) = cluster.warnings("bundle.lock.stray")
    assert warning["bundle"] == stray
    await operator.delete(f"{znodes.LOCKS}/{stray}")
    await cluster.until(lambda: cluster.leader.metric("loadmanager_stray_locks") == 0, within_s=20)
