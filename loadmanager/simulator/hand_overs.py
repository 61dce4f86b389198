"""States of brokers, owners of bundles, hand-overs, and the time that clients wait for them.

Times within a step are exact: a hand-over that is shorter than a step takes effect at the next
step, but its pause has its exact duration.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.columns import Indices, Mask
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Cause
from loadmanager.core.scores import FloatArray
from loadmanager.simulator.fleet import Fleet
from loadmanager.simulator.run import MoveRecord, Why
from loadmanager.simulator.scenario.model import HandOverSettings
from loadmanager.simulator.topics import Topics

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
    target: int
    source: int
    at_s: float
    why: Why
    cause: Cause
    msgs_per_s: float
    bytes_per_s: float
    release_s: float
    serve_s: float


@dataclass(slots=True, kw_only=True)
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
    warm_up_s: float = 0.0
    under_way: dict[BundleId, BrokerId] = field(default_factory=dict)
    interrupted_client_s: float = 0.0
    interrupted_in_warm_up_client_s: float = 0.0
    records: list[MoveRecord] = field(default_factory=list)
    _orders: dict[int, _Order] = field(default_factory=dict)
    rows: Mapping[BundleId, int] = field(init=False)
    _brokers: Mapping[BrokerId, int] = field(init=False)
    _unserved_since_s: FloatArray = field(init=False)
    _clients: FloatArray = field(init=False)
    served_since_s: FloatArray = field(init=False)
    _waited_s: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self.rows = {bundle: row for row, bundle in enumerate(self.topics.bundles)}
        self._brokers = {broker: row for row, broker in enumerate(self.fleet.brokers)}
        self._unserved_since_s = np.full(len(self.holder), np.nan)
        self._clients = (self.topics.producers + self.topics.consumers).astype(np.float64)
        self.served_since_s = np.full(len(self.holder), -np.inf)
        self._waited_s = np.zeros(len(self.holder))

    @property
    def serving(self) -> Indices:
        """The broker that serves each bundle, -1 for none."""
        served = (self.holder >= 0) & self.members.alive[self.holder]
        return np.where(served, self.holder, NOBODY)

    def order(
        self,
        bundle: BundleId,
        target: BrokerId,
        now_s: float,
        *,
        why: Why,
        cause: Cause,
        rates: FloatArray,
        after_s: float = 0.0,
    ) -> None:
        """Order ``bundle`` to ``target``; ``rates`` are its true rates.

        The hand-over starts ``after_s`` later, if others go first. The order is ignored if the
        bundle is in hand-over or on the target already, or if the target is not registered.
        """
        row, to = self.rows[bundle], self._brokers[target]
        source = int(self.holder[row])
        if row in self._orders or source == to or not self.members.registered[to]:
            return
        at_s = now_s + after_s
        release_s = at_s + self.settings.order_s
        if source >= 0 and not self.members.alive[source]:
            release_s = max(release_s, float(self.members.session_ends_s[source]))
        self._orders[row] = _Order(
            target=to,
            source=source,
            at_s=at_s,
            why=why,
            cause=cause,
            msgs_per_s=float(rates[0] + rates[1]),
            bytes_per_s=float(rates[2] + rates[3]),
            release_s=release_s,
            serve_s=release_s + self._taking_s(row),
        )
        self.under_way[bundle] = target

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
        waited_s = 0.0 if np.isnan(since_s) else until_s - max(since_s, order.at_s)
        brokers = self.fleet.brokers
        self.records.append(
            MoveRecord(
                at_s=order.at_s,
                bundle=self.topics.bundles[row],
                source=None if order.source < 0 else brokers[order.source],
                target=brokers[order.target],
                why=order.why,
                cause=order.cause,
                msgs_per_s=order.msgs_per_s,
                bytes_per_s=order.bytes_per_s,
                interrupted_client_s=float(self._clients[row]) * waited_s,
                served_at_s=until_s if served else None,
                pause_s=waited_s,
            )
        )

    def _forget(self, row: int) -> None:
        del self._orders[row]
        del self.under_way[self.topics.bundles[row]]


class Unmoved:
    """The broker that would serve each bundle in the same run without the moves for load.

    A bundle keeps its first owner until that broker is gone; then it gets its owner in the run, by
    a placement or a drain, and keeps it. So joins, departures, crashes and placements are the same.
    """

    def __init__(self, holder: Indices) -> None:
        self._holder = holder.copy()

    def owner(self, hand_overs: HandOvers) -> Indices:
        """Return the owner of each bundle now, -1 for none; has to be called in each step."""
        gone = (self._holder < 0) | ~hand_overs.members.alive[self._holder]
        self._holder = np.where(gone, hand_overs.serving, self._holder)
        return self._holder
