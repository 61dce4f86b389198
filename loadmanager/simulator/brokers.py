"""The modelled brokers: capacity, usage and saturation; who owns what, and hand-overs.

Times within a step are exact: a hand-over that is shorter than a step takes effect at the next
step, but its pause has its exact duration.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.columns import Indices, Mask
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Move
from loadmanager.core.rates import BYTES_IN, BYTES_OUT, MSGS_IN, MSGS_OUT
from loadmanager.core.scores import BANDWIDTH_IN, BANDWIDTH_OUT, CPU, MEMORY, FloatArray
from loadmanager.simulator.results import MoveRecord, Why
from loadmanager.simulator.scenario import PORT, BrokerClass, HandOverSettings, HiddenCost
from loadmanager.simulator.workload import Topics

_KIB_PER_MIB: Final = 1024.0
_BITS_PER_MBIT: Final = 1e6
_ROUNDING: Final = 1e-9
_REPORTED: Final = (CPU, MEMORY, BANDWIDTH_IN, BANDWIDTH_OUT)
# From the units here to those of load reports: percent of a core, MiB, kbit/s.
_REPORT_UNITS: Final = np.array([100.0, 1.0, 1e-3, 1e-3])


class Fleet:
    """All brokers of a scenario, present or not; B brokers, four resources.

    Resources are in cores, MiB, and bits per second in and out. ``background`` is the usage by
    other processes. ``class_of`` is the class of each broker; on a broker of a class a message or
    byte per second costs ``per_work`` (C, 4 kinds of traffic, 4), and a topic and a connection
    cost ``per_thing`` (C, 2, 4).
    """

    def __init__(self, classes: Sequence[BrokerClass], cpu_growth: float) -> None:
        names = [name for group in classes for name in group.brokers]
        counts = [group.count for group in classes]
        self._rows_of = {name: [row] for row, name in enumerate(names)}
        ends = np.cumsum(counts)
        for group, end in zip(classes, ends.tolist(), strict=True):
            self._rows_of[group.name] = list(range(end - group.count, end))
        units = (1.0, 1.0, _BITS_PER_MBIT, _BITS_PER_MBIT)
        capacity = [
            (one.cores, one.memory_mib, one.network_mbit_per_s, one.network_mbit_per_s)
            for one in classes
        ]
        background = [
            (one.cores, one.memory_mib, one.network_in_mbit_per_s, one.network_out_mbit_per_s)
            for one in (group.background for group in classes)
        ]
        self.brokers = tuple(BrokerId(f"{name}:{PORT}") for name in names)
        self.capacity: FloatArray = np.repeat(np.multiply(capacity, units), counts, axis=0)
        self.background: FloatArray = np.repeat(np.multiply(background, units), counts, axis=0)
        self.class_of: Indices = np.repeat(np.arange(len(classes)), counts)
        self.per_work = np.stack([_per_work(group.cost) for group in classes])
        self.per_thing = np.stack([_per_thing(group.cost) for group in classes])
        self.cpu_growth = cpu_growth

    def rows(self, names: Iterable[str]) -> list[int]:
        """Return the rows of brokers or whole classes, each once, in the order named."""
        return list(dict.fromkeys(row for name in names for row in self._rows_of[name]))

    def variable(self, work: FloatArray, cpu_work: FloatArray) -> FloatArray:
        """Return (B, 4) the cost of each broker's traffic.

        ``work`` (B, 4) are its rates; ``cpu_work`` the rates weighted for CPU.
        """
        per_work = self.per_work[self.class_of]
        amounts = np.einsum("bk,bkr->br", work, per_work)
        amounts[:, 0] = (cpu_work * per_work[:, :, 0]).sum(axis=1)
        return np.asarray(amounts)

    def fixed(self, things: FloatArray, background: FloatArray) -> FloatArray:
        """Return (B, 4) the usage without traffic: by other processes, topics and connections.

        ``things`` (B, 2) are the topics and connections.
        """
        per_thing = self.per_thing[self.class_of]
        return np.asarray(background + np.einsum("bk,bkr->br", things, per_thing))

    def use(
        self, fixed: FloatArray, variable: FloatArray, waiting: FloatArray | None = None
    ) -> "Use":
        """Return the demand on each broker, and the served part.

        ``fixed``, ``variable`` and ``waiting`` (B, 4) are the usage without traffic, for the
        traffic, and for the backlog. If demand exceeds the capacity of any resource, the broker
        serves all traffic at a lower rate, by the factor with which the scarcest resource has room
        for it beside the fixed usage. The backlog is served with the remaining
        room.
        """
        demand = (fixed + variable) / self.capacity
        served = self._fits(fixed, variable)
        used = fixed + variable * served[:, np.newaxis]
        caught_up = np.zeros(len(served))
        if waiting is not None:
            caught_up = self._fits(used, waiting)
            more = waiting * caught_up[:, np.newaxis]
            used, demand = used + more, demand + more / self.capacity
        cores = self.capacity[:, 0]
        if self.cpu_growth:
            used[:, 0] = grown_cpu(used[:, 0] / cores, self.cpu_growth) * cores
        return Use(self.grown(demand), served, caught_up, np.minimum(used, self.capacity))

    def grown(self, fractions: FloatArray) -> FloatArray:
        if not self.cpu_growth:
            return fractions
        cpu = grown_cpu(fractions[:, :1], self.cpu_growth)
        return np.hstack([cpu, fractions[:, 1:]])

    def _fits(self, used: FloatArray, asked: FloatArray) -> FloatArray:
        """Return (B,) the fraction of the demand for which all resources have room."""
        capacity = self.capacity.copy()
        capacity[:, 0] *= full_at(self.cpu_growth)
        room = np.maximum(capacity - used, 0.0)
        short = asked > room
        fits = np.where(short, room / np.where(short, asked, 1.0), 1.0)
        # A broker whose fixed usage exceeds a resource has no room for traffic.
        beyond = (used > capacity * (1.0 + _ROUNDING)).any(axis=1)
        return np.where(beyond, 0.0, fits.min(axis=1))

    def cost(self, work: FloatArray, things: FloatArray, cpu_work: FloatArray) -> FloatArray:
        """Return (C, K, 4): the cost of each bundle on a broker of each class.

        ``work`` (K, 4) is the demanded traffic, ``cpu_work`` the same weighted for CPU;
        ``things`` (K, 2) are topics and connections.
        """
        amounts = work @ self.per_work
        amounts[:, :, 0] = (cpu_work @ self.per_work[:, :, 0].T).T
        return np.asarray(amounts + things @ self.per_thing)


@dataclass(frozen=True, eq=False)
class Use:
    """The demand on brokers and their usage.

    ``demand`` (B, 4) is a fraction of capacity, ``usage`` an amount that never exceeds it.
    ``served_fraction`` (B,) of the demanded traffic is served, and ``caught_up_fraction`` of the
    backlog that clients could send.
    """

    demand: FloatArray
    served_fraction: FloatArray
    caught_up_fraction: FloatArray
    usage: FloatArray


def grown_cpu(fraction: FloatArray, growth: float) -> FloatArray:
    """Return the CPU demand for work with the nominal demand ``fraction`` of a broker.

    It grows quadratically up to a full broker, and linearly from there on.
    """
    return np.asarray(fraction * (1.0 + growth * np.minimum(fraction, 1.0)))


def full_at(growth: float) -> float:
    """Return the fraction at which `grown_cpu` is 1."""
    return (math.sqrt(1.0 + 4.0 * growth) - 1.0) / (2.0 * growth) if growth else 1.0


def in_report_units(amounts: FloatArray) -> FloatArray:
    """Return (B, 4) amounts as (B, 5) in the units and order of load reports.

    Direct memory is 0 of 0, as from an agent that cannot measure it.
    """
    found = np.zeros((len(amounts), 5))
    found[:, _REPORTED] = amounts * _REPORT_UNITS
    return found


def _per_work(cost: HiddenCost) -> FloatArray:
    found = np.zeros((4, 4))
    message = [cost.cpu_us_per_msg * 1e-6, cost.memory_kib_per_msg_per_s / _KIB_PER_MIB]
    found[MSGS_IN, :2] = found[MSGS_OUT, :2] = message
    found[BYTES_IN, 0] = found[BYTES_OUT, 0] = cost.cpu_ns_per_byte * 1e-9
    found[MSGS_IN, 2] = found[MSGS_OUT, 3] = cost.wire_bytes_per_msg * 8.0
    found[BYTES_IN, 2] = found[BYTES_OUT, 3] = 8.0
    return found


def _per_thing(cost: HiddenCost) -> FloatArray:
    topic = (cost.cpu_us_per_topic_s * 1e-6, cost.memory_kib_per_topic / _KIB_PER_MIB)
    connection = (
        cost.cpu_us_per_connection_s * 1e-6,
        cost.memory_kib_per_connection / _KIB_PER_MIB,
    )
    return np.array([(*topic, 0.0, 0.0), (*connection, 0.0, 0.0)])


_NEVER: Final = -1


class Members:
    """The states of B brokers.

    ``alive`` brokers serve. ``registered`` ones have a session; after a crash the session and its
    locks remain until the timeout. ``draining`` ones are being emptied. ``noise_cores`` is the CPU
    taken by noise events. ``started_at_ms`` is different after each start of a broker.
    """

    def __init__(self, joined: Mask) -> None:
        self.alive: Mask = joined.copy()
        self.registered: Mask = joined.copy()
        self.draining: Mask = np.zeros(len(joined), dtype=np.bool_)
        self.noise_cores: FloatArray = np.zeros(len(joined))
        self.session_ends_s: FloatArray = np.full(len(joined), np.inf)
        self.started_at_ms: NDArray[np.int64] = np.where(joined, 0, _NEVER).astype(np.int64)

    def begin(self, row: int, at_s: float) -> None:
        self.alive[row] = self.registered[row] = True
        self.draining[row] = False
        self.started_at_ms[row] = max(int(at_s * 1000), int(self.started_at_ms[row]) + 1)

    def die(self, row: int, session_ends_s: float) -> None:
        """Crash a broker, whose session remains until ``session_ends_s``."""
        self.alive[row] = False
        self.session_ends_s[row] = session_ends_s

    def deregister(self, row: int) -> None:
        self.alive[row] = self.registered[row] = self.draining[row] = False
        self.session_ends_s[row] = np.inf


NOBODY = -1


@dataclass(slots=True, kw_only=True)
class _Order:
    """``record`` is the move as long as the target does not serve."""

    record: MoveRecord
    target: int
    source: int
    release_s: float
    serve_s: float


@dataclass(eq=False, kw_only=True)
class HandOvers:
    """The locks of all bundles and the hand-overs in progress.

    ``holder`` is the broker with the lock of each bundle, dead or alive. ``under_way`` are the
    targets of bundles in hand-over. ``interrupted_client_s`` is the sum of the completed waiting
    times of clients, ``interrupted_in_warm_up_client_s`` the part of it before ``warm_up_s``.
    ``served_since_s`` is the time since which the current owner serves each bundle (-inf for the
    initial owners).
    """

    fleet: Fleet
    topics: Topics
    members: Members
    settings: HandOverSettings
    holder: Indices
    warm_up_s: float

    def __post_init__(self) -> None:
        topics, count = self.topics, len(self.holder)
        self.under_way: dict[BundleId, BrokerId] = {}
        self.interrupted_client_s = self.interrupted_in_warm_up_client_s = 0.0
        self.records: list[MoveRecord] = []
        self.rows = {bundle: row for row, bundle in enumerate(topics.bundles)}
        self.served_since_s = np.full(count, -np.inf)
        self._orders: dict[int, _Order] = {}
        self._brokers = {broker: row for row, broker in enumerate(self.fleet.brokers)}
        self._unserved_since_s = np.full(count, np.nan)
        self._clients = (topics.producers + topics.consumers).astype(np.float64)
        self._waited_s = np.zeros(count)

    @property
    def serving(self) -> Indices:
        """The broker that serves each bundle, -1 for none."""
        served = (self.holder >= 0) & self.members.alive[self.holder]
        return np.where(served, self.holder, NOBODY)

    def order(self, move: Move, at_s: float, why: Why, rates: FloatArray) -> None:
        """Order a move that starts at ``at_s``; ``rates`` are the true rates of its bundle.

        The order is ignored if the bundle is in hand-over or on the target already, or if the
        target is not registered.
        """
        row, to = self.rows[move.bundle], self._brokers[move.target]
        source = int(self.holder[row])
        if row in self._orders or source == to or not self.members.registered[to]:
            return
        release_s = at_s + self.settings.order_s
        if source >= 0 and not self.members.alive[source]:
            release_s = max(release_s, float(self.members.session_ends_s[source]))
        record = MoveRecord(
            at_s=at_s,
            bundle=move.bundle,
            source=None if source < 0 else self.fleet.brokers[source],
            target=move.target,
            why=why,
            cause=move.cause,
            msgs_per_s=float(rates[0] + rates[1]),
            bytes_per_s=float(rates[2] + rates[3]),
        )
        serve_s = release_s + self._taking_s(row)
        self._orders[row] = _Order(
            record=record, target=to, source=source, release_s=release_s, serve_s=serve_s
        )
        self.under_way[move.bundle] = move.target

    def advance(self, now_s: float) -> None:
        """Carry out the releases and acquisitions that are due until ``now_s``."""
        for row, order in list(self._orders.items()):
            if order.release_s <= now_s and self.holder[row] >= 0:
                self._let_go(row, order.release_s)
            # A bundle waits for a crashed target until its session ends.
            if order.serve_s <= now_s and self.members.alive[order.target]:
                ready_s = order.serve_s + self.settings.reconnect_s
                self._record(row, order, ready_s, served=True)
                if not np.isnan(since_s := self._unserved_since_s[row]):
                    self._waited_s[row] += ready_s - since_s
                    self._end_waiting(np.array([row]), ready_s)
                self.holder[row] = order.target
                self.served_since_s[row] = order.serve_s
                self._forget(row)

    def wait_from(self, now_s: float, wanted: Mask) -> None:
        """Start the waiting time of ``wanted`` bundles that no broker serves."""
        new = wanted & (self.serving < 0) & np.isnan(self._unserved_since_s)
        self._unserved_since_s[new] = now_s

    def take_waited_s(self) -> FloatArray:
        """Return the unserved time of each bundle that was acquired since the last call."""
        waited_s, self._waited_s = self._waited_s, np.zeros(len(self.holder))
        return waited_s

    def stopped(self, broker: int, at_s: float) -> None:
        """Process the crash of ``broker``: no broker serves its bundles."""
        self._unserved_since_s[self.held_by(broker)] = at_s
        for order in self._orders.values():
            if order.source == broker and order.release_s > at_s:
                delay_s = float(self.members.session_ends_s[broker]) - order.release_s
                order.release_s += delay_s
                order.serve_s += delay_s

    def freed(self, broker: int, at_s: float) -> None:
        """Process the end of the session of ``broker``: release its locks, cancel orders to it."""
        for row in self.held_by(broker).tolist():
            self._let_go(row, at_s)
        for row, order in list(self._orders.items()):
            if order.target == broker:
                self._forget(row)
            elif order.source == broker and order.release_s > at_s:
                order.release_s = at_s
                order.serve_s = at_s + self._taking_s(row)

    @property
    def turn_s(self) -> float:
        """The usual time from an order to the service by the new owner."""
        topics = float(self.topics.topics.mean()) if len(self.holder) else 0.0
        return self.settings.order_s + self.settings.base_s + self.settings.per_topic_s * topics

    @property
    def sources(self) -> Iterator[int]:
        return (order.source for order in self._orders.values())

    def held_by(self, broker: int) -> Indices:
        return np.flatnonzero(self.holder == broker)

    def is_empty(self, broker: int) -> bool:
        arriving = any(order.target == broker for order in self._orders.values())
        return not arriving and not self.held_by(broker).size

    def unowned(self) -> list[BundleId]:
        rows = np.flatnonzero(~np.isnan(self._unserved_since_s) & (self.holder < 0)).tolist()
        return [self.topics.bundles[row] for row in rows if row not in self._orders]

    def finish(self, now_s: float) -> None:
        for row, order in list(self._orders.items()):
            self._record(row, order, now_s, served=False)
            self._forget(row)
        self._end_waiting(np.flatnonzero(~np.isnan(self._unserved_since_s)), now_s)

    def _taking_s(self, row: int) -> float:
        return self.settings.base_s + self.settings.per_topic_s * float(self.topics.topics[row])

    def _let_go(self, row: int, at_s: float) -> None:
        self.holder[row] = NOBODY
        if np.isnan(self._unserved_since_s[row]):
            self._unserved_since_s[row] = at_s

    def _end_waiting(self, rows: Indices, until_s: float) -> None:
        clients, since_s = self._clients[rows], self._unserved_since_s[rows]
        warm_s = np.maximum(min(until_s, self.warm_up_s) - since_s, 0.0)
        self.interrupted_client_s += float(clients @ (until_s - since_s))
        self.interrupted_in_warm_up_client_s += float(clients @ warm_s)
        self._unserved_since_s[rows] = np.nan

    def _record(self, row: int, order: _Order, until_s: float, *, served: bool) -> None:
        since_s = float(self._unserved_since_s[row])
        # The waiting time of an unowned bundle before the order is not due to this move.
        waited_s = 0.0 if np.isnan(since_s) else until_s - max(since_s, order.record.at_s)
        interrupted_client_s = float(self._clients[row]) * waited_s
        served_at_s = until_s if served else None
        self.records.append(
            replace(
                order.record,
                interrupted_client_s=interrupted_client_s,
                served_at_s=served_at_s,
                pause_s=waited_s,
            )
        )

    def _forget(self, row: int) -> None:
        del self._orders[row]
        del self.under_way[self.topics.bundles[row]]
