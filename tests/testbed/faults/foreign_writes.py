"""Changes of nodes by foreign clients: clients that are no sidecars of the cluster."""

from typing import Final

from loadmanager.core import znodes
from loadmanager.core.orders import Orders, decode_orders, encode_orders
from tests.testbed.checker.availability import share_positions
from tests.testbed.faults.network_faults import stop_servers
from tests.testbed.faults.scene import Action, Scene

_AHEAD: Final = (1000, 2**31, 2**62)
_MOST_RAISES: Final = 20


async def write_orders(scene: Scene) -> str:
    """Write orders for a broker with an epoch of no elected leader."""
    rng, monitor = scene.rng, scene.monitor
    host, nodes = scene.any_host(), scene.cluster.service.nodes
    path = znodes.orders(host.name)
    if path not in nodes:
        return ""
    elected = nodes[znodes.EPOCH].node.stat.version
    bundles = monitor.bundles
    some = frozenset(rng.sample(bundles, rng.randint(0, len(bundles))))
    orders = Orders(elected + rng.choice(_AHEAD), some)
    content = encode_orders(orders)
    monitor.orders.foreign(content)
    former = decode_orders(path, nodes[path].node.data).bundles
    parts = {b for b in bundles if any(share_positions(b, whole) for whole in former)}
    monitor.availability.erased(parts - some)
    operator = await scene.cluster.operator()
    scene.begin(operator.set(path, content))
    return f"{host.name} epoch {orders.epoch} {len(some)} bundles"


async def raise_epoch(scene: Scene) -> str:
    """Raise the epoch, as several elections do, which ends the term of the leader."""
    if znodes.EPOCH not in scene.cluster.service.nodes:
        return ""
    operator, times = await scene.cluster.operator(), scene.rng.randint(1, _MOST_RAISES)
    for _ in range(times):
        scene.begin(operator.set(znodes.EPOCH, b"a stranger"))
    return f"{times} times"


async def copy_ensemble(scene: Scene) -> str:
    scene.snapshot = scene.cluster.service.snapshot()
    return f"zxid {scene.snapshot.zxid}"


async def restore_ensemble(scene: Scene) -> str:
    """Stop all processes, restore the copy of the nodes, and start all processes again.

    This is the procedure of the operator guide. Epochs and transaction ids go back.
    """
    cluster, snapshot = scene.cluster, scene.snapshot
    service = cluster.service
    if snapshot is None or service.down:
        return ""
    stop_servers(scene)
    for agent in cluster.living:
        await agent.kill()
    for agent in cluster.agents:
        service.close_session(agent.coordination.session.session_id)
    for host in cluster.hosts:
        host.thaw_broker()
        host.kill_broker()
    before = dict(service.nodes)
    service.restore(snapshot)
    scene.monitor.restored(before)
    for host in cluster.hosts:
        host.restart_broker()
        scene.start(host)
    return f"zxid {snapshot.zxid}"


FOREIGN_WRITES: Final = (
    Action("copy the ensemble's data", 4, copy_ensemble),
    Action("restore older data", 1, restore_ensemble, harms=True),
    Action("write a stranger's orders", 1, write_orders, harms=True),
    Action("raise the epoch", 1, raise_epoch, harms=True),
)
