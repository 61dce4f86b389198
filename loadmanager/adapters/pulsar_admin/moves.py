"""Moves of a cluster's bundles by Pulsar's admin REST, each in its turn."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from loadmanager.adapters.pulsar_admin.client import PulsarAdmin, PulsarAdminError, RightMissing
from loadmanager.adapters.pulsar_admin.move_order import (
    LOOK_S,
    RETURN_S,
    Move,
    MoveOrder,
    Outcome,
)
from loadmanager.adapters.pulsar_admin.ownership import BrokerQueries
from loadmanager.core.ids import BrokerId, BundleId, TopicName

CALM_RATIO: Final = 3.0
MOST_CALM_S: Final = 3.0
"""How long a broker that a claimed bundle left keeps its others: so many times as the move took.

A modular broker answers what is sent to a topic that it is closing with an error, upon which
several clients (those in C++ and Python, older ones in Java) close their connection to it. They
look up all topics again that they have there, and once more if the next move comes before they
are back.
"""

AVOIDED_S: Final = 600.0
"""How long a broker takes no further move to which one did not come, unless it ends before.

A broker of the extensible manager that hangs while it stops says that it is ready, and serves
no bundle that comes to it.
"""
_AVOIDED_PAUSE_S: Final = 0.5


@dataclass(slots=True)
class BundleMover:
    """Carries out moves in one cluster.

    Pulsar's destinations of bundles with equal ranges in different namespaces get mixed up,
    so of those only one moves at a time. So do bundles that leave the same broker or go to the
    same one: it closes or opens their topics one by one, and clients of the first bundle would
    wait for those of the last.

    Attributes:
        address: the URL of a broker.
        brokers: returns all of the cluster, for finding a bundle that went elsewhere.
        claims: whether the claim is of use, as on the modular manager.
        look_s: how long after an order the bundle is looked for at its target.
        return_s: how long it is waited for where the target ended.
        waiting: the bundles that wait for their turn.
        avoided: the brokers to which no move begins for now.
    """

    admin: PulsarAdmin
    address: Callable[[BrokerId], str]
    cluster: str
    brokers: Callable[[], Collection[BrokerId]]
    claims: bool
    look_s: float = LOOK_S
    return_s: float = RETURN_S
    waiting: set[BundleId] = field(default_factory=set, init=False)
    avoided: dict[BrokerId, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _sources: dict[BrokerId, asyncio.Lock] = field(default_factory=dict)
    _targets: dict[BrokerId, asyncio.Lock] = field(default_factory=dict)
    _calm_s: dict[BrokerId, float] = field(default_factory=dict)
    _ranges: dict[str, asyncio.Lock] = field(default_factory=dict)
    _queries: BrokerQueries = field(init=False)

    def __post_init__(self) -> None:
        """Ask brokers by the same means."""
        self._queries = BrokerQueries(self.admin, self.address, self.cluster, self.brokers)

    def close(self) -> None:
        """Begin no move any more: those that wait for their turn end at once."""
        self._over.set()

    async def move(self, move: Move, ordered: Callable[[], None] = lambda: None) -> Outcome:
        """Carry out a move; calls ``ordered`` before each order.

        Raises:
            RightMissing: 401 or 403: no further move will do better.
        """
        ranges = self._ranges.setdefault(move.bundle.rpartition("/")[2], asyncio.Lock())
        self.waiting.add(move.bundle)
        try:
            async with ranges, self._turn(move.source, move.target):
                self.waiting.discard(move.bundle)
                if self._over.is_set():
                    return Outcome(state="superseded", reason="the term ended", owner=move.source)
                refusal = await self._why_not(move)
                if refusal is not None:
                    return refusal
                order = self._order(move)
                outcome = await order.carried_out(ordered)
                if order.left and outcome.owner != move.target:
                    self._avoid(move.target)
                return outcome
        finally:
            self.waiting.discard(move.bundle)

    async def place(
        self, bundle: BundleId, target: BrokerId, topic: TopicName, ordered: Callable[[], None]
    ) -> Outcome:
        """Have a broker serve a bundle that no broker serves, by the claim alone; as `move`."""
        move = Move(bundle=bundle, source=target, target=target, topic=topic)
        async with self._targets.setdefault(target, asyncio.Lock()):
            if self._over.is_set():
                return Outcome(state="superseded", reason="the term ended")
            if why := await self._queries.why_not_ready(target):
                return Outcome(state="failed", reason=why)
            ordered()
            order = self._order(move)
            await order.claim()
            owner = await order.find()
        if owner == target:
            return Outcome(state="serving", attempts=1, owner=owner)
        if owner is None:
            why = "no broker says that it serves it"
            return Outcome(state="timed_out", reason=why, attempts=1)
        why = f"{owner} was asked first"
        return Outcome(state="landed_elsewhere", reason=why, attempts=1, owner=owner)

    @asynccontextmanager
    async def _turn(self, source: BrokerId, target: BrokerId) -> AsyncIterator[None]:
        """Wait for the moves before from and to these brokers, with claims for the clients, too."""
        entering = self._targets.setdefault(target, asyncio.Lock())
        async with self._sources.setdefault(source, asyncio.Lock()):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._calm_s.get(source, 0.0) - monotonic()):
                    await self._over.wait()
            async with entering:
                began_s = monotonic()
                try:
                    yield
                finally:
                    ended_s = monotonic()
                    if self.claims:
                        calm_s = min(CALM_RATIO * (ended_s - began_s), MOST_CALM_S)
                        self._calm_s[source] = ended_s + calm_s

    async def _why_not(self, move: Move) -> Outcome | None:
        """Return how a move ends before it begins, None if it may begin."""
        try:
            if not await self._queries.serves(move.source, move.bundle):
                why = f"{move.source} does not serve it any more"
                return Outcome(state="superseded", reason=why)
        except RightMissing:
            raise
        except PulsarAdminError as error:
            return Outcome(state="failed", reason=str(error), owner=move.source)
        why = await self._queries.why_not_ready(move.target)
        if not why and move.target in self.avoided:
            why = f"{move.target} says that it is ready, but a move to it did not arrive before"
        return Outcome(state="failed", reason=why, owner=move.source) if why else None

    def _avoid(self, broker: BrokerId) -> None:
        """Begin no move to a broker until its process ends, or for a while."""
        if broker not in self.avoided and not self._over.is_set():
            self.avoided[broker] = task = asyncio.create_task(self._until_it_ends(broker))
            task.add_done_callback(lambda _: self.avoided.pop(broker))

    async def _until_it_ends(self, broker: BrokerId) -> None:
        until_s = monotonic() + AVOIDED_S
        with suppress(RightMissing):
            while not self._over.is_set() and monotonic() < until_s:
                if await self._queries.why_not_ready(broker):
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(_AVOIDED_PAUSE_S):
                        await self._over.wait()

    def _order(self, move: Move) -> MoveOrder:
        return MoveOrder(
            admin=self.admin,
            brokers=self._queries,
            claims=self.claims,
            move=move,
            over=self._over,
            look_s=self.look_s,
            return_s=self.return_s,
        )
