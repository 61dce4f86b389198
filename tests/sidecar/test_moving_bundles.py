import asyncio
from typing import Any

from stories import place_all, served, story

from loadmanager.agent.owning_agent import OwningAgent
from loadmanager.core import znodes
from loadmanager.core.ids import BundleId
from tests.testbed.faults.agent import SESSION_S
from tests.testbed.faults.cluster import Cluster
from tests.testbed.faults.host import Host
from tests.testbed.in_process import Fault


def _others(cluster: Cluster, bundle: BundleId) -> list[Host]:
    return [host for host in cluster.hosts if host is not cluster.server(bundle)]


def _steps(cluster: Cluster, bundle: BundleId, since_s: float) -> list[str]:
    interesting = {
        "bundle.serving.ended": "ended",
        "bundle.lock.released": "released",
        "bundle.lock.acquired": "acquired",
        "bundle.serving.begun": "begun",
    }
    return [
        interesting[entry["event"]]
        for entry in cluster.log_entries
        if entry.get("bundle") == bundle
        and entry["event"] in interesting
        and entry["at_s"] >= since_s
    ]


@story()
async def test_a_hand_over_unloads_drops_takes_and_loads_in_this_order(cluster: Cluster) -> None:
    boundaries = await served(cluster, 3)
    bundle = boundaries.bundles[0]
    source, target = cluster.server(bundle), _others(cluster, bundle)[0]
    token = source.serving[bundle]
    begun_s = asyncio.get_running_loop().time()
    await cluster.move(bundle, target)
    nodes = cluster.service.dump()
    orders = [nodes[f"/loadbalance/orders/{host.name}"].stat.mzxid for host in (source, target)]
    assert orders[0] == orders[1], "they are one commit"
    assert bundle not in cluster.orders(source).bundles
    assert cluster.orders(source).handovers[bundle] == target.name
    assert bundle in cluster.orders(target).bundles
    assert cluster.orders(target).epoch == cluster.service.epochs[-1]
    member = cluster.agent_of(source.name).app.member
    assert isinstance(member, OwningAgent)
    handing = member._ownerships
    await cluster.until(lambda: handing.handovers.get(bundle) == target.name)
    await cluster.until(lambda: len(_steps(cluster, bundle, begun_s)) == 4)

    assert _steps(cluster, bundle, begun_s) == ["ended", "released", "acquired", "begun"]
    assert cluster.servers(bundle) == [target]
    assert target.serving[bundle] > token
    await cluster.settled(boundaries.bundles)
    spans = {i.broker: i for h in (source, target) for i in h.intervals() if i.bundle == bundle}
    assert spans[source.name].end_s <= spans[target.name].start_s
    assert spans[target.name].start_s - spans[source.name].end_s < 0.05


@story()
async def test_a_hand_over_waits_for_a_request_in_service(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(1)
    (topic,) = await place_all(cluster, boundaries)
    (bundle,) = boundaries.bundles
    source, target = cluster.server(bundle), _others(cluster, bundle)[0]
    ticket: Any = source.broker.process.begin_publish(topic)
    await cluster.move(bundle, target)
    await asyncio.sleep(3.0)
    assert cluster.servers(bundle) == [source]
    source.broker.process.finish_publish(ticket, producer="p", payload_bytes=1)
    await cluster.until(lambda: cluster.servers(bundle) == [target])


@story()
async def test_a_load_or_unload_that_fails_is_repeated_under_its_lock(
    cluster: Cluster,
) -> None:
    boundaries = await cluster.make_namespace(1)
    for host in cluster.hosts:
        host.broker.inject(Fault.REFUSED, "load", times=2)
    await place_all(cluster, boundaries)
    (bundle,) = boundaries.bundles
    lock = cluster.service.dump()[f"/namespace/{bundle}"]
    assert cluster.server(bundle).serving[bundle] == lock.stat.czxid
    for host in cluster.hosts:
        host.broker.heal()
    failed = len(cluster.warnings("broker.command.failed"))
    source, target = cluster.server(bundle), _others(cluster, bundle)[0]
    source.broker.inject(Fault.REFUSED, "unload", times=2)
    await cluster.move(bundle, target)
    await asyncio.sleep(0.5)
    session = cluster.agent_of(source.name).coordination.session.session_id
    assert cluster.lock_sessions() == {bundle: session}
    await cluster.until(lambda: cluster.servers(bundle) == [target], within_s=5.0)
    assert len(cluster.warnings("broker.command.failed")) == failed + 2


@story()
async def test_a_late_load_starts_nothing_after_the_hand_over(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(1)
    for host in cluster.hosts:
        host.broker.inject(Fault.LATE, "load", times=1)
    (bundle,) = boundaries.bundles
    await place_all(cluster, boundaries)
    source, target = cluster.server(bundle), _others(cluster, bundle)[0]
    target.broker.heal()
    await cluster.move(bundle, target)
    await cluster.until(lambda: cluster.servers(bundle) == [target])
    source.broker.heal()  # The first load arrives now.
    await asyncio.sleep(1.0)
    assert cluster.servers(bundle) == [target]


@story()
async def test_bundles_of_an_expired_session_are_placed_elsewhere(cluster: Cluster) -> None:
    boundaries = await served(cluster, 6)
    lost = cluster.server(boundaries.bundles[0])
    lost.kill_broker()
    await cluster.agent_of(lost.name).kill()
    await cluster.settled(boundaries.bundles, within_s=SESSION_S + 2.0)
    assert lost.serving == {}
    assert all(lost.name not in agent.cluster_state.brokers for agent in cluster.living)


@story()
async def test_commands_of_a_bundle_moved_to_and_fro_follow_one_another(cluster: Cluster) -> None:
    boundaries = await served(cluster, 1)
    (bundle,) = boundaries.bundles
    source, target = cluster.server(bundle), _others(cluster, bundle)[0]
    running, most = 0, 0
    line = cluster.agent_of(source.name).line
    load, unload = line.load, line.unload

    async def counted(command: Any, *arguments: Any, **named: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(0.2)
            await command(*arguments, **named)
        finally:
            running -= 1

    line.load = lambda *a, **n: counted(load, *a, **n)  # type: ignore[method-assign]
    line.unload = lambda *a, **n: counted(unload, *a, **n)  # type: ignore[method-assign]
    for _ in range(4):
        await cluster.move(bundle, target)
        await asyncio.sleep(0.1)
        await cluster.move(bundle, source)
        await asyncio.sleep(0.3)
    await cluster.settled(boundaries.bundles)
    assert most == 1
    assert cluster.servers(bundle) == [source], "the last order says so"


@story()
async def test_a_lost_or_spoilt_order_is_repeated(cluster: Cluster) -> None:
    boundaries = await served(cluster, 3)
    leading = cluster.leader.host  # A new leader could know of a lost order from lookups only.
    bundle = next(one for one in boundaries.bundles if cluster.server(one) is not leading)
    owner = cluster.server(bundle)
    operator = await cluster.operator()
    await operator.delete(znodes.orders(owner.name))
    await cluster.agent_of(owner.name).kill()
    cluster.start(owner)  # The new process knows of no orders, and gives everything back.
    await cluster.settled(boundaries.bundles, within_s=40.0)
    assert cluster.warnings("bundle.order.repeated") or cluster.servers(bundle) != [owner]
