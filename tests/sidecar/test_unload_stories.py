"""Bundles unloaded by hand while clients look topics up."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from stories import place_all, story

from loadmanager.admin.unloads import UnloadedBundle
from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId, Namespace, TopicName
from loadmanager.core.orders import SplitOrder
from loadmanager.ports.administration import BundleUnknown, UnloadRefused
from loadmanager.ports.leading import LeaderElsewhere
from loadmanager.ports.lookup import NamespaceUnknown, Unavailable
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import NAMESPACE, Cluster, make_config, play
from tests.testbed.faults.host import Host
from tests.testbed.faults.topics import topic_in


async def unload(cluster: Cluster, bundle: BundleId, to: Host | None = None) -> UnloadedBundle:
    """Ask the leader to unload ``bundle``, and return where it went once that is done."""
    range_text = bundle.rpartition("/")[2]
    destination = to.name if to else None
    unloads = cluster.leader.app.unload_requests
    (unloaded,) = await unloads.unload(NAMESPACE, range_text, destination)
    assert unloaded.bundle == bundle
    return unloaded


@asynccontextmanager
async def looked_up(cluster: Cluster, topics: list[TopicName]) -> AsyncIterator[None]:
    """Look topics up at every sidecar all the time; one that fails fails the story."""

    async def keep_looking_up(agent: Agent) -> None:
        while True:
            for topic in topics:
                await agent.look_up(topic)
                answered.append(topic)
            await asyncio.sleep(0.003)

    answered: list[TopicName] = []
    lookers = [asyncio.ensure_future(keep_looking_up(agent)) for agent in cluster.living]
    try:
        yield
    finally:
        for looker in lookers:
            looker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looker
    assert len(answered) > 10 * len(topics)


def others(cluster: Cluster, *but: Host) -> list[Host]:
    """Return the other hosts."""
    return [host for host in cluster.hosts if host not in but]


@story()
async def test_an_unloaded_bundle_is_served_elsewhere_when_the_answer_comes(
    cluster: Cluster,
) -> None:
    boundaries = await cluster.make_namespace(6)
    topics = await place_all(cluster, boundaries)
    bundle = boundaries.bundles[0]
    source = cluster.server(bundle)
    token = source.serving[bundle]
    async with looked_up(cluster, topics):
        unloaded = await unload(cluster, bundle)
        holding = cluster.leader.cluster_state.live_owner(bundle)
        assert holding is not None
        assert (unloaded.source, unloaded.target) == (source.name, holding.broker)
        assert unloaded.target != unloaded.source
        assert 0 < unloaded.took_s < 1
        await cluster.settled(boundaries.bundles, within_s=1.0)
        await asyncio.sleep(1.0)
    target = cluster.server(bundle)
    assert target is not source
    assert target.serving[bundle] > token
    (told,) = cluster.leader.app.explainer.explain(bundle).explanation.decisions[:1]
    assert (told.code.value, told.source, told.target) == ("requested", source.name, target.name)


@story()
async def test_a_bundle_goes_to_the_named_destination_and_stays_if_it_is_there(
    cluster: Cluster,
) -> None:
    boundaries = await cluster.make_namespace(6)
    topics = await place_all(cluster, boundaries)
    bundle = boundaries.bundles[0]
    target = others(cluster, cluster.server(bundle))[-1]
    async with looked_up(cluster, topics):
        await unload(cluster, bundle, target)
        await cluster.settled(boundaries.bundles, within_s=1.0)
        assert cluster.server(bundle) is target
        token = target.serving[bundle]
        again = await unload(cluster, bundle, target)
        assert again.source == again.target == target.name
        await asyncio.sleep(1.0)
    assert target.serving[bundle] == token


@story()
async def test_all_bundles_of_a_namespace_change_their_broker_a_few_at_a_time(
    cluster: Cluster,
) -> None:
    boundaries = await cluster.make_namespace(24)
    topics = await place_all(cluster, boundaries)
    before = {bundle: cluster.server(bundle) for bundle in boundaries.bundles}
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            served = sum(len(host.serving) for host in cluster.hosts)
            most = max(most, len(boundaries.bundles) - served)
            await asyncio.sleep(0.0005)

    watching = asyncio.ensure_future(watch())
    async with looked_up(cluster, topics):
        unloaded = await cluster.leader.app.unload_requests.unload(NAMESPACE, None, None)
        await cluster.settled(boundaries.bundles, within_s=1.0)
    watching.cancel()
    assert {one.bundle: one.target for one in unloaded} == {
        bundle: cluster.server(bundle).name for bundle in boundaries.bundles
    }
    assert all(cluster.server(bundle) is not before[bundle] for bundle in boundaries.bundles)
    assert 0 < most <= 10


@story()
async def test_what_nobody_owns_is_unloaded_already(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(2)
    nothing = UnloadedBundle(bundle=boundaries.bundles[0], source=None, target=None, took_s=0.0)
    assert await unload(cluster, boundaries.bundles[0]) == nothing
    assert await unload(cluster, boundaries.bundles[0], cluster.hosts[1]) == nothing
    await cluster.leader.app.unload_requests.unload(NAMESPACE, None, None)
    assert cluster.lock_sessions() == {}


@pytest.mark.parametrize("slow_target", [False, True])
def test_a_bundle_on_its_way_to_its_first_owner_is_unloaded_too(slow_target: bool) -> None:
    # Two brokers that are slow one after the other take longer than lookups usually wait.
    config = make_config(lookup={"wait_s": 20.0})
    play(lambda cluster: _unload_on_its_way(cluster, slow_target), config=config)


async def _unload_on_its_way(cluster: Cluster, slow_target: bool) -> None:
    boundaries = await cluster.make_namespace(6)
    slow = [agent for agent in cluster.living if not agent.leads]
    for agent in slow:
        agent.coordination.delay_commits_s = 1.0
    late = [agent.host for agent in slow]
    first = cluster.living[0]
    asked = [first.look_up(topic_in(boundaries, bundle)) for bundle in boundaries.bundles]
    placing = asyncio.gather(*asked)

    def on_their_way() -> list[tuple[BundleId, Host]]:
        """Return what is ordered to the slow, and has no lock yet."""
        ordered = [a.host for a in slow if znodes.orders(a.host.name) in cluster.service.dump()]
        locked = cluster.lock_sessions()
        return [
            (bundle, host)
            for host in ordered
            for bundle in sorted(cluster.orders(host).bundles)
            if bundle not in locked
        ]

    await cluster.until(on_their_way)
    bundle, ordered = on_their_way()[0]
    # The order stands in the service; the leader has not heard yet that it was written.
    target = next(one for one in others(cluster, ordered) if (one in late) is slow_target)
    await unload(cluster, bundle, target)
    assert cluster.server(bundle) is target
    await placing
    await cluster.settled(boundaries.bundles)


@story(1)
async def test_a_bundle_that_nobody_else_can_take_is_not_interrupted(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(2)
    await place_all(cluster, boundaries)
    bundle = boundaries.bundles[0]
    token = cluster.hosts[0].serving[bundle]
    with pytest.raises(Unavailable, match=f"no other broker can take {bundle}"):
        await unload(cluster, bundle)
    await asyncio.sleep(3.0)
    (interval,) = [i for i in cluster.hosts[0].intervals() if i.bundle == bundle]
    assert interval.fencing_token == token == cluster.hosts[0].serving[bundle]


@story()
async def test_a_destination_that_is_not_there_is_refused_by_pulsars_words(
    cluster: Cluster,
) -> None:
    boundaries = await cluster.make_namespace(2)
    await place_all(cluster, boundaries)
    asked = cluster.leader.app.unload_requests
    with pytest.raises(
        UnloadRefused, match="inactive destination broker: nowhere:8080 is not registered"
    ):
        await asked.unload(
            NAMESPACE, boundaries.bundles[0].rpartition("/")[2], BrokerId("nowhere:8080")
        )


@story(leader={"report_stale_s": 6.5}, report={"max_interval_s": 5.0})
async def test_a_destination_that_has_not_reported_for_long_is_refused(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(6)
    await place_all(cluster, boundaries)
    silent = next(agent for agent in cluster.living if not agent.leads)
    bundle = next(b for b in boundaries.bundles if cluster.server(b) is not silent.host)
    silent.coordination.freeze()
    await asyncio.sleep(7.0)
    with pytest.raises(UnloadRefused, match=r"last reported \d+ s ago; expected at most 6.5 s"):
        await unload(cluster, bundle, silent.host)


@story()
async def test_unknown_names_and_other_sidecars_are_told_apart(cluster: Cluster) -> None:
    await cluster.make_namespace(2)
    asked = cluster.leader.app.unload_requests
    with pytest.raises(NamespaceUnknown):
        await asked.unload(Namespace("acme/none"), None, None)
    with pytest.raises(BundleUnknown, match="0x00000000_0x40000000 not found"):
        await asked.unload(NAMESPACE, "0x00000000_0x40000000", None)
    follower = next(agent for agent in cluster.living if not agent.leads)
    with pytest.raises(LeaderElsewhere) as told:
        await follower.app.unload_requests.unload(NAMESPACE, None, None)
    assert told.value.sidecar_url == cluster.leader.url


@story()
async def test_a_destination_that_dies_meanwhile_is_told_and_another_serves(
    cluster: Cluster,
) -> None:
    boundaries = await cluster.make_namespace(6)
    await place_all(cluster, boundaries)
    target = next(a for a in cluster.living if not a.leads)
    bundle = next(b for b in boundaries.bundles if cluster.server(b) is not target.host)
    asking = asyncio.ensure_future(unload(cluster, bundle, target.host))
    await asyncio.sleep(0)
    await target.kill()
    target.host.kill_broker()
    with pytest.raises(Unavailable, match=r"did not arrive at .* within 15 s"):
        await asking
    await cluster.settled(boundaries.bundles)


@pytest.mark.parametrize("seed", range(8))
def test_a_bundle_that_is_cut_while_it_is_unloaded_does_not_come_back(seed: int) -> None:
    async def tell(cluster: Cluster) -> None:
        boundaries = await cluster.make_namespace(4)
        await place_all(cluster, boundaries)
        whole = boundaries.bundles[0]
        app, range_text = cluster.leader.app, whole.rpartition("/")[2]
        order = SplitOrder("range_equally_divide")
        splitting = asyncio.ensure_future(app.split_requests.split(NAMESPACE, range_text, order))
        await asyncio.sleep(0.004 * seed)
        with contextlib.suppress(BundleUnknown):
            await app.unload_requests.unload(NAMESPACE, range_text, None)
        await splitting
        now = app.answering.boundaries(NAMESPACE)
        bundles = (await now).bundles
        assert len(bundles) == 5
        await cluster.settled(bundles)
        await asyncio.sleep(10.0)
        await cluster.settled(bundles, within_s=1.0)
        assert cluster.servers(whole) == []

    play(tell, seed=seed)


def test_an_unloaded_bundle_rests_like_any_other_that_moved() -> None:
    async def tell(cluster: Cluster) -> None:
        boundaries = await cluster.make_namespace(6)
        await place_all(cluster, boundaries)
        bundle = boundaries.bundles[0]
        await unload(cluster, bundle)
        leader_term = cluster.leader.app.leading.leader_term
        assert leader_term is not None
        assert bundle in leader_term.look().memory.resting(asyncio.get_running_loop().time(), 60.0)

    play(tell, config=make_config())
