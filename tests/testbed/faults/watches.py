"""The watches of servers, of orders and of leaders."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loadmanager.config import Config
from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of
from loadmanager.core.orders import decode_orders
from loadmanager.core.wire.records import decode_lock
from loadmanager.ports.coordination import Create, Node, Operation
from loadmanager.reference_broker.changes import BundleLoaded, Change, LeaseGranted, ServingEnded
from tests.testbed.checker.availability import share_positions
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.host import Host
from tests.testbed.faults.service import TimedService
from tests.testbed.faults.trace import Trace
from tests.testbed.faults.violation import Invariant, Report
from tests.testbed.memory.tree import Znode

_ELECTION_S: Final = 5.0
"""For noticing the free node, a lost race or reply, and the first reads of a term."""

LAGS_TO_A_LEADER: Final = 4
"""Late replies that follow one another before a leader is at work, beyond what 16 s hold.

That a late sidecar leads takes up to seven after its election, while a healthy one waits for it.
"""


def led_within_s(config: Config) -> float:
    """Return the bound: the session of the last leader, a tick, and the election."""
    return SESSION_S + config.leader.tick_interval_s + _ELECTION_S


@dataclass(slots=True)
class LeaderWatch:
    """Checks at intervals whether there is a leader."""

    within_s: float
    report: Report
    longest_s: float = 0.0
    """The longest counted time without a leader."""
    _undisturbed_since_s: float = 0.0
    _led_at_s: float = 0.0

    def disturbed(self, at_s: float) -> None:
        self._undisturbed_since_s = at_s

    def look(self, at_s: float, *, led: bool, healthy: bool, lag_s: float = 0.0) -> None:
        """Check the time without a leader; replies are up to ``lag_s`` late."""
        if not healthy:
            self.disturbed(at_s)
        if led:
            self._led_at_s = at_s
            return
        within_s = self.within_s + LAGS_TO_A_LEADER * lag_s
        passed_s = at_s - max(self._led_at_s, self._undisturbed_since_s)
        self.longest_s = max(self.longest_s, passed_s)
        if passed_s > within_s:
            seen = f"no leader for {passed_s:.1f} s; bound {within_s:.1f} s"
            self.report(Invariant.SOMEBODY_LEADS, znodes.LEADER, seen)


def any_sidecar_leads(agents: Iterable[Agent], nodes: Mapping[str, Znode]) -> bool:
    """Return whether the term of the sidecar that holds the election node has begun."""
    node = nodes.get(znodes.LEADER)
    if node is None:
        return False
    holder = node.node.stat.ephemeral_owner
    return any(
        agent.coordination.session.session_id == holder
        and agent.application is not None
        and agent.app.leading.leader_term is not None
        for agent in agents
    )


def is_healthy(agent: Agent) -> bool:
    """Return whether a sidecar is registered, connected, not stopping, and has its broker."""
    return (
        agent.host.obeys
        and agent.coordination.in_touch
        and not agent.coordination.lag_s
        and not agent.stop.is_set()
        and agent.application is not None
        and agent.app.member.registered
    )


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


class ServingWatch:
    """Checks each load of a bundle when it is made.

    Two brokers serve at the same time only if one begins while another serves, so it is enough
    to compare at each load. A broker whose lease has expired serves nothing.
    """

    def __init__(self, hosts: Sequence[Host], trace: Trace, report: Report) -> None:
        self._hosts = hosts
        self._trace = trace
        self._report = report
        self._tokens: defaultdict[Namespace, dict[BundleId, tuple[int, str]]] = defaultdict(dict)
        self.loads = 0

    def changed(self, host: Host, change: Change) -> None:
        if isinstance(change, LeaseGranted):
            return
        if isinstance(change, BundleLoaded):
            self.loads += 1
            self._trace.add("load", f"{host.name} {change.bundle} token {change.fencing_token}")
            self._look_at(host, change)
        elif isinstance(change, ServingEnded):
            self._trace.add("end", f"{host.name} {change.bundle} {change.why.value}")

    def restored(self) -> None:
        """Restart: after a restore of older data, tokens start from a lower number."""
        self._tokens.clear()

    def _look_at(self, host: Host, load: BundleLoaded) -> None:
        for other in self._hosts:
            if other is host:
                continue
            for bundle, token in other.serving.items():
                if share_positions(bundle, load.bundle):
                    self._report(
                        Invariant.ONE_SERVER,
                        load.bundle,
                        f"{host.name} serves it under token {load.fencing_token} while "
                        f"{other.name} serves {bundle} under token {token}",
                    )
        self._compare_tokens(host, load)

    def _compare_tokens(self, host: Host, load: BundleLoaded) -> None:
        """Report a token below an earlier one for the same positions.

        Within one broker process overlapping bundles may have any order: during a split a bundle
        and its halves are loaded at the same time.
        """
        process = host.broker.incarnation
        known = self._tokens[namespace_of(load.bundle)]
        for bundle, (token, by) in known.items():
            same = bundle == load.bundle or (by != process and share_positions(bundle, load.bundle))
            if same and token > load.fencing_token:
                self._report(
                    Invariant.TOKENS_GROW,
                    load.bundle,
                    f"{process} serves it under token {load.fencing_token} after {by} served "
                    f"{bundle} under token {token}",
                )
        known[load.bundle] = (load.fencing_token, process)
