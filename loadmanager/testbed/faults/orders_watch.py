"""Watching orders: which leader wrote each, and which one each lock was taken on."""

from collections.abc import Sequence

from loadmanager.adapters.memory.tree import Znode
from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.orders import decode_orders
from loadmanager.core.wire import decode_lock
from loadmanager.ports import Create, Node, Operation
from loadmanager.testbed.faults.agent import Agent
from loadmanager.testbed.faults.service import TimedService
from loadmanager.testbed.faults.trace import Trace
from loadmanager.testbed.faults.violation import Invariant, Report

_ORDERS = znodes.ORDERS + "/"
_LOCKS = znodes.LOCKS + "/"


class OrdersWatch:
    """Holds every write of orders to the present epoch, and every lock to the last orders.

    Orders are levels and stand until they are written again, so an order of a leader
    before is still to be obeyed. What must not be: that a leader writes orders whose
    term is over, and with that, that orders go back to an earlier epoch; that a sidecar
    takes a lock on other orders than those it read last.
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
        """Expect these orders to be written by a stranger, and no agent to act on them."""
        self._foreign.add(content)

    def restored(self, epoch: int) -> None:
        """Start over with this epoch: the service's data were replaced by older ones."""
        self._elected = epoch

    # --- in the service -------------------------------------------------------------

    def node_changed(self, path: str, now: Znode | None) -> frozenset[BundleId]:
        """Look at a write of orders or of the epoch, in the moment it is applied.

        Return the bundles that a leader orders with it to one broker.
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

    # --- at the sidecars ------------------------------------------------------------

    def follow(self, agent: Agent) -> None:
        """Listen to the orders that a sidecar reads, and to what it commits then."""
        session, broker = agent.coordination, agent.host.name
        name = agent.context.identity.instance
        session.after_read = lambda path, node: self._was_read(name, broker, path, node)
        session.after_watch = lambda path, node: self._on_announced(name, broker, path, node)
        session.before_commit = lambda operations: self._committed(name, operations)

    def _on_announced(self, name: str, broker: BrokerId, path: str, node: Node | None) -> None:
        if path != znodes.orders(broker) or node is None or not node.data:
            return
        # An agent that read a stranger's orders may take nothing until it reads a leader's.
        self._announced[name] = decode_orders(path, node.data).epoch
        self._misled.discard(name)
        if node.data in self._foreign:
            self._misled.add(name)

    def _was_read(self, name: str, broker: BrokerId, path: str, node: Node | None) -> None:
        if path != znodes.orders(broker) or node is None or node.data in {b"", *self._foreign}:
            return
        self._read[name] = decode_orders(path, node.data).epoch
        if name in self._misled:
            # They stand in the place of the stranger's: in a new session it reads them first.
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
        # A leader reads all orders, so what its process has read it need not obey yet.
        newest = max(announced, self._read.get(name, 0))
        if not announced <= epoch <= newest:
            seen = f"{name} takes it on orders of epoch {epoch} after those of {announced}"
            self._report(Invariant.ORDERS_OF_THE_TERM, operation.path, seen)
        if epoch < acted:
            seen = f"{name} takes it on orders of epoch {epoch} after acting on those of {acted}"
            self._report(Invariant.ORDERS_OF_THE_TERM, operation.path, seen)
        self._acted[name] = max(epoch, acted)
