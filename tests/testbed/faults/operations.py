from typing import Final

from loadmanager.admin.namespaces import Namespaces
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import Namespace
from loadmanager.core.orders import Orders, SplitOrder, decode_orders, encode_orders
from tests.testbed.checker.availability import share_positions
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import order
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


NAMESPACES: Final = tuple(Namespace(f"acme/{name}") for name in ("orders", "mails", "clicks"))
MOST_BUNDLES: Final = 8


async def move_bundle(scene: Scene) -> str:
    bundle, target = scene.any_bundle(), scene.any_host().name
    if bundle is None:
        return ""
    for agent, leader_term in scene.terms():
        if target in agent.cluster_state.brokers:
            scene.begin(order(leader_term, {bundle: target}))
    return f"{bundle} to {target}"


async def split_bundle(scene: Scene) -> str:
    bundle = scene.any_bundle()
    namespace = bundle.rpartition("/")[0] if bundle else ""
    if bundle is None or len(scene.monitor.bundles_of(Namespace(namespace))) >= 2 * MOST_BUNDLES:
        return ""
    for _, leader_term in scene.terms():
        scene.begin(leader_term.splits.order(bundle, SplitOrder("range_equally_divide")))
    return bundle


async def merge_bundles(scene: Scene) -> str:
    bundle, terms = scene.any_bundle(), scene.terms()
    if bundle is None or not terms:
        return ""
    namespace, _, text = bundle.rpartition("/")
    agent, _ = scene.rng.choice(terms)
    scene.begin(agent.app.bundle_requests.merge(Namespace(namespace), text, None))
    return f"{bundle} with the next"


async def unload_bundle(scene: Scene) -> str:
    bundle, rng = scene.any_bundle(), scene.rng
    terms = scene.terms()
    if bundle is None or not terms:
        return ""
    namespace, _, text = bundle.rpartition("/")
    range_text = text if rng.randrange(3) else None
    destination = scene.any_host().name if rng.randrange(2) else None
    agent, _ = rng.choice(terms)
    unloads = agent.app.bundle_requests
    scene.begin(unloads.unload(Namespace(namespace), range_text, destination))
    return f"{namespace}/{range_text or 'all'} to {destination or 'anywhere'}"


async def mark_draining(scene: Scene) -> str:
    agent, broker = scene.any_agent(), scene.any_host().name
    if agent.application is None or not agent.alive:
        return ""
    scene.begin(agent.app.drains.mark(broker, by="faults", reason="to see"))
    return f"{broker} by {agent.url}"


async def unmark_draining(scene: Scene) -> str:
    operator = await scene.cluster.operator()
    nodes = scene.cluster.service.nodes
    marked = [host for host in scene.cluster.hosts if znodes.draining(host.name) in nodes]
    for host in marked:
        scene.begin(operator.delete(znodes.draining(host.name)))
    return " ".join(host.name for host in marked)


async def create_namespace(scene: Scene) -> str:
    missing = [name for name in NAMESPACES if name not in scene.monitor.namespaces]
    agent = scene.any_agent()
    if not missing or agent.application is None:
        return ""
    namespace = scene.rng.choice(missing)
    boundaries = Boundaries.even(namespace, scene.rng.randrange(1, MOST_BUNDLES))
    scene.begin(_namespaces(agent).put(boundaries, {}))
    return f"{namespace} {len(boundaries.bundles)} bundles by {agent.url}"


async def delete_namespace(scene: Scene) -> str:
    namespace, terms = scene.any_namespace(), scene.terms()
    if namespace is None or not terms:
        return ""
    agent, _ = scene.rng.choice(terms)
    scene.begin(_namespaces(agent).delete(namespace, force=True))
    return f"{namespace} by {agent.url}"


def _namespaces(agent: Agent) -> Namespaces:
    return Namespaces(agent.context, agent.app.leading, "standalone")


OPERATIONS: Final = (
    Action("move a bundle", 8, move_bundle),
    Action("split a bundle", 2, split_bundle),
    Action("merge bundles", 2, merge_bundles),
    Action("unload", 2, unload_bundle),
    Action("mark a broker draining", 1, mark_draining),
    Action("remove drain marks", 2, unmark_draining),
    Action("create a namespace", 3, create_namespace),
    Action("delete a namespace", 1, delete_namespace),
)
