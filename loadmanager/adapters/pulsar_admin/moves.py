import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from loadmanager.adapters.pulsar_admin.client import AnswerRefused, RequestFailed, RightMissing
from loadmanager.adapters.pulsar_admin.move_order import (
    LOOK_S,
    RETURN_S,
    Move,
    MoveOrder,
    Outcome,
)
from loadmanager.adapters.pulsar_admin.ownership import BrokerQueries
from loadmanager.core.ids import BrokerId, BundleId, TopicName
from loadmanager.core.splitting.cutting import parts_at

PAUSE_RATIO: Final = 3.0
LONGEST_PAUSE_S: Final = 3.0
"""The longest pause between two claimed moves off one broker.

It is `PAUSE_RATIO` times the duration of the first move, up to this. A modular broker answers
requests for a topic that it is closing with an error, upon which several clients (in C++ and
Python, older ones in Java) close their connection to it. They look up all their topics there
again, and once more if the next move comes before they have reconnected.
"""

AVOIDED_S: Final = 600.0
"""Time without moves to a broker at which a bundle did not arrive, unless the broker ends before.

With the extensible load manager a broker that hangs during shutdown still reports that it is
ready, but serves no bundle that is moved to it.
"""
_AVOIDED_PAUSE_S: Final = 0.5


@dataclass(slots=True)
class BundleMover:
    """Carries out moves in one cluster.

    Pulsar confuses the destinations of bundles with equal ranges in different namespaces, so only
    one of those moves at a time. Bundles with the same source or the same target also move one
    at a time: the broker closes or opens their topics one by one, and clients of the first
    bundle would wait for those of the last. No move begins to the brokers in ``avoided``.
    """

    brokers: BrokerQueries
    claims: bool
    look_s: float = LOOK_S
    return_s: float = RETURN_S
    waiting: set[BundleId] = field(default_factory=set, init=False)
    avoided: dict[BrokerId, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _sources: dict[BrokerId, asyncio.Lock] = field(default_factory=dict)
    _targets: dict[BrokerId, asyncio.Lock] = field(default_factory=dict)
    _paused_until_s: dict[BrokerId, float] = field(default_factory=dict)
    _ranges: dict[str, asyncio.Lock] = field(default_factory=dict)

    def close(self) -> None:
        self._over.set()

    async def move(self, move: Move, ordered: Callable[[], None] = lambda: None) -> Outcome:
        """Calls ``ordered`` before each order. Raises `RightMissing`, as any further move would."""
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
        """Make a broker serve a bundle that no broker serves, by the claim alone; as `move`."""
        move = Move(bundle=bundle, source=target, target=target, topic=topic)
        async with self._targets.setdefault(target, asyncio.Lock()):
            if self._over.is_set():
                return Outcome(state="superseded", reason="the term ended")
            if why := await self.brokers.why_not_ready(target):
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
        """Wait for earlier moves off and to these brokers, and for the pause after claimed ones."""
        entering = self._targets.setdefault(target, asyncio.Lock())
        async with self._sources.setdefault(source, asyncio.Lock()):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._paused_until_s.get(source, 0.0) - monotonic()):
                    await self._over.wait()
            async with entering:
                began_s = monotonic()
                try:
                    yield
                finally:
                    ended_s = monotonic()
                    if self.claims:
                        pause_s = min(PAUSE_RATIO * (ended_s - began_s), LONGEST_PAUSE_S)
                        self._paused_until_s[source] = ended_s + pause_s

    async def _why_not(self, move: Move) -> Outcome | None:
        """Return the outcome of a move that cannot begin, None if it may begin."""
        try:
            if not await self.brokers.serves(move.source, move.bundle):
                why = f"{move.source} does not serve it any more"
                return Outcome(state="superseded", reason=why)
        except RequestFailed as error:
            return Outcome(state="failed", reason=str(error), owner=move.source)
        why = await self.brokers.why_not_ready(move.target)
        if not why and move.target in self.avoided:
            why = f"{move.target} says that it is ready, but a move to it did not arrive before"
        return Outcome(state="failed", reason=why, owner=move.source) if why else None

    def _avoid(self, broker: BrokerId) -> None:
        if broker not in self.avoided and not self._over.is_set():
            self.avoided[broker] = task = asyncio.create_task(self._until_it_ends(broker))
            task.add_done_callback(lambda _: self.avoided.pop(broker))

    async def _until_it_ends(self, broker: BrokerId) -> None:
        until_s = monotonic() + AVOIDED_S
        with suppress(RightMissing):
            while not self._over.is_set() and monotonic() < until_s:
                if await self.brokers.why_not_ready(broker):
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(_AVOIDED_PAUSE_S):
                        await self._over.wait()

    def _order(self, move: Move) -> MoveOrder:
        return MoveOrder(
            brokers=self.brokers,
            claims=self.claims,
            move=move,
            over=self._over,
            look_s=self.look_s,
            return_s=self.return_s,
        )


_SPLIT_LOOK_S: Final = 5.0
"""Time after an order within which the broker is expected to serve the parts."""

_SPLIT_PAUSE_S: Final = 0.2


async def split_bundle(
    brokers: BrokerQueries,
    broker: BrokerId,
    bundle: BundleId,
    cut: int,
    ordered: Callable[[], None] = lambda: None,
) -> Outcome:
    """Split a bundle at its broker; ``cut`` is the first position of the second part.

    Pulsar's own split by traffic answers 500 in several versions; splits at given positions exist
    since 3.0. Topics stay loaded at their broker, so clients are not interrupted.

    Calls ``ordered`` before the order. Raises `RightMissing`: 401 or 403, which any further split
    would get, too.
    """
    try:
        if not await brokers.serves(broker, bundle):
            why = f"{broker} does not serve it any more"
            return Outcome(state="superseded", reason=why)
    except RequestFailed as error:
        return Outcome(state="failed", reason=str(error))
    ordered()
    why = f"{broker} does not serve both parts"
    url = f"{brokers.address(broker)}/admin/v2/namespaces/{bundle}/split?unload=false"
    try:
        await brokers.admin.change(
            "PUT", f"{url}&splitAlgorithmName=specified_positions_divide", f"[{cut}]"
        )
    except AnswerRefused as error:
        return Outcome(state="failed", reason=str(error), attempts=1, owner=broker)
    except RequestFailed as error:
        why = str(error)
    until_s = monotonic() + _SPLIT_LOOK_S
    while monotonic() < until_s:
        try:
            if await brokers.serves(broker, *parts_at(bundle, cut)):
                return Outcome(state="serving", attempts=1, owner=broker)
        except RequestFailed as error:
            why = str(error)
        await asyncio.sleep(_SPLIT_PAUSE_S)
    return Outcome(state="timed_out", reason=why, attempts=1)
