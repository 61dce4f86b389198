from dataclasses import replace

import pytest
from stories import place_all, story

from loadmanager.core import znodes
from loadmanager.core.load import BrokerUrls
from loadmanager.core.orders import Orders, encode_orders
from loadmanager.core.wire.records import LockRecord, encode_lock
from loadmanager.ports.coordination import Create, Node
from tests.testbed.faults.cluster import Cluster
from tests.testbed.faults.monitor import Monitor
from tests.testbed.faults.seed_run import ACTIONS, run_seed
from tests.testbed.faults.trace import Trace
from tests.testbed.faults.violation import Invariant

OFTEN = ("copy the ensemble's data", "restore older data")


@story()
async def test_a_lock_taken_on_a_strangers_orders_is_told_of(cluster: Cluster) -> None:
    monitor = Monitor(cluster, Trace())
    monitor.orders.restored(1)  # It did not see the election.
    boundaries = await cluster.make_namespace(2)
    await place_all(cluster, boundaries)
    agent = cluster.living[0]
    monitor.follow_agent(agent)
    orders = Orders(2**62, frozenset(boundaries.bundles))
    content = encode_orders(orders)
    monitor.orders.foreign(content)
    await cluster.write(znodes.orders(agent.host.name), content)
    await cluster.settled(boundaries.bundles)
    assert not monitor.violations
    urls = BrokerUrls(http_url="http://b")
    record = LockRecord(urls=urls, broker=agent.host.name, epoch=orders.epoch)
    path = znodes.lock(boundaries.bundles[0])
    assert agent.coordination.before_commit is not None
    agent.coordination.before_commit([Create(path, encode_lock(record), ephemeral=True)])
    assert [one.invariant for one in monitor.violations] == [Invariant.ORDERS_OF_THE_TERM]


@story()
async def test_who_reads_a_leaders_orders_after_a_strangers_takes_locks_on_those_and_no_older(
    cluster: Cluster,
) -> None:
    """As a sidecar does that registers in a new session: it reads before its watch tells it."""
    monitor = Monitor(cluster, Trace())
    monitor.orders.restored(1)  # It did not see the election.
    boundaries = await cluster.make_namespace(1)
    await place_all(cluster, boundaries)
    agent = cluster.living[0]
    monitor.follow_agent(agent)
    session, path = agent.coordination, znodes.orders(agent.host.name)
    assert session.before_commit is not None
    assert session.after_watch is not None
    assert session.after_read is not None
    node = await session.get(znodes.LEADER)
    assert node is not None

    def orders(epoch: int) -> Node:
        return replace(node, data=encode_orders(Orders(epoch)))

    def lock(epoch: int) -> Create:
        urls = BrokerUrls(http_url="http://b")
        record = LockRecord(urls=urls, broker=agent.host.name, epoch=epoch)
        return Create(znodes.lock(boundaries.bundles[0]), encode_lock(record), ephemeral=True)

    monitor.orders.foreign(orders(2**62).data)
    session.after_watch(path, orders(2**62))
    session.after_read(path, orders(2**62))
    session.after_read(path, orders(7))
    session.before_commit([lock(7)])
    assert not monitor.violations
    session.before_commit([lock(6)])
    assert [one.invariant for one in monitor.violations] == [Invariant.ORDERS_OF_THE_TERM]


@story(2)
async def test_restored_data_are_older_and_have_no_ephemeral_nodes(cluster: Cluster) -> None:
    service = cluster.service
    boundaries = await cluster.make_namespace(2)
    await place_all(cluster, boundaries)
    copy, held = service.snapshot(), service.dump()
    await (await cluster.operator()).delete(znodes.LEADER)
    await cluster.until(lambda: len(service.epochs) == 2)
    later = service.zxid
    for agent in list(cluster.living):
        await agent.kill()
        service.close_session(agent.coordination.session.session_id)
    for host in cluster.hosts:
        host.kill_broker()
    service.restore(copy)
    restored = service.dump()
    lasting = {path: node for path, node in held.items() if not node.stat.ephemeral_owner}
    assert restored == lasting
    assert restored[znodes.EPOCH].stat.version == 1
    assert service.zxid > later  # A leader of the ensemble begins above all of its former epoch.
    for host in cluster.hosts:
        host.restart_broker()
        cluster.start(host)
    await cluster.ready()
    await place_all(cluster, boundaries)
    assert service.epochs == [2]


@pytest.mark.parametrize("seed", [3, 8])
def test_older_data_restored_again_and_again_break_no_promise(seed: int) -> None:
    actions = [replace(one, weight=one.weight + 8 * (one.name in OFTEN)) for one in ACTIONS]
    outcome = run_seed(seed, actions=actions)
    assert not outcome.violation, "\n".join([*outcome.last_lines, outcome.violation])
    assert outcome.happened["restore older data"] > 0
