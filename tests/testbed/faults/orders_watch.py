"""Checks orders: which leader wrote them, and on which orders each lock was taken."""

from collections.abc import Sequence

from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.orders import decode_orders
from loadmanager.core.wire.records import decode_lock
from loadmanager.ports.coordination import Create, Node, Operation
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.service import TimedService
from tests.testbed.faults.trace import Trace
from tests.testbed.faults.violation import Invariant, Report
from tests.testbed.memory.tree import Znode

_ORDERS = znodes.ORDERS + "/"
_LOCKS = znodes.LOCKS + "/"


class OrdersWatch:
    """Compares each write of orders with the current epoch, and each lock with the last orders.

    Orders are levels: they remain valid until they are written again, also those of a former
    leader. Violations are a write of orders by a leader whose term is over, and a lock that a
    sidecar takes on orders other than those it read last.
    """

    def __init__(self, service: TimedService, trace: Trace, report: Report) -> None:
        self._service = service
        self._trace = trace
        self._report = report
        self._elected = 0
        self._announced: dict[str, int] = {}
        self._misled: set[str] = set()
        self._read: dict[str, int] = {}
        self._acted: dict[str, int] = {}
        self._foreign: set[bytes] = set()
        self.writes = 0
        self.locks = 0

    def foreign(self, content: bytes) -> None:
        """Expect a foreign client to write these orders, and no agent to act on them."""
        self._foreign.add(content)

    def restored(self, epoch: int) -> None:
        """Restart with this epoch: the nodes were replaced by an older state."""
        self._elected = epoch

    def node_changed(self, path: str, now: Znode | None) -> frozenset[BundleId]:
        """Check a write of orders or of the epoch when it is applied.

        Return the bundles that a leader orders with it.
        """
        if path == znodes.EPOCH and now is not None:
            epoch = now.node.stat.version
            self._trace.add("epoch", str(epoch))
            if epoch < self._elected:
                self._report(Invariant.TOKENS_GROW, path, f"epoch {epoch} after {self._elected}")
            self._elected = max(self._elected, epoch)
        elif path.startswith(_ORDERS) and now is not None and now.node.data:
            self.writes += 1
            return self._orders_written(path, now)
        return frozenset()

    def _orders_written(self, path: str, now: Znode) -> frozenset[BundleId]:
        if now.node.data in self._foreign:
            self._trace.add("orders", f"{path} by a stranger")
            return frozenset()
        orders = decode_orders(path, now.node.data)
        epoch = orders.epoch
        self._trace.add("orders", f"{path} epoch {epoch}")
        if epoch != self._elected:
            seen = f"written in epoch {epoch} while {self._elected} is elected"
            self._report(Invariant.ORDERS_OF_THE_TERM, path, seen)
        return orders.bundles

    def follow(self, agent: Agent) -> None:
        session, broker = agent.coordination, agent.host.name
        name = agent.context.identity.instance
        session.after_read = lambda path, node: self._was_read(name, broker, path, node)
        session.after_watch = lambda path, node: self._on_announced(name, broker, path, node)
        session.before_commit = lambda operations: self._committed(name, operations)

    def _on_announced(self, name: str, broker: BrokerId, path: str, node: Node | None) -> None:
        if path != znodes.orders(broker) or node is None or not node.data:
            return
        # After foreign orders an agent may take no lock until it reads orders of a leader.
        self._announced[name] = decode_orders(path, node.data).epoch
        self._misled.discard(name)
        if node.data in self._foreign:
            self._misled.add(name)

    def _was_read(self, name: str, broker: BrokerId, path: str, node: Node | None) -> None:
        if path != znodes.orders(broker) or node is None or node.data in {b"", *self._foreign}:
            return
        self._read[name] = decode_orders(path, node.data).epoch
        if name in self._misled:
            # They replaced the foreign orders; in a new session the agent reads them first.
            self._announced[name] = self._read[name]
            self._misled.discard(name)

    def _committed(self, name: str, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, Create) and operation.path.startswith(_LOCKS):
                self._taken(name, operation)

    def _taken(self, name: str, operation: Create) -> None:
        self.locks += 1
        epoch = decode_lock(operation.path, operation.data).epoch
        acted = self._acted.get(name, 0)
        announced = self._announced.get(name, 0)
        # A leader reads all orders, so its agent may not have received those that it read yet.
        newest = max(announced, self._read.get(name, 0))
        if not announced <= epoch <= newest:
            seen = f"{name} takes it on orders of epoch {epoch} after those of {announced}"
            self._report(Invariant.ORDERS_OF_THE_TERM, operation.path, seen)
        if epoch < acted:
            seen = f"{name} takes it on orders of epoch {epoch} after acting on those of {acted}"
            self._report(Invariant.ORDERS_OF_THE_TERM, operation.path, seen)
        self._acted[name] = max(epoch, acted)
