import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Final

from loadmanager.adapters.pulsar_admin.client import AnswerRefused, RequestFailed, RightMissing
from loadmanager.adapters.pulsar_admin.move_order import (
    LOOK_S,
    RETURN_S,
    STUCK_S,
    Move,
    MoveOrder,
    Outcome,
    OutcomeState,
)
from loadmanager.adapters.pulsar_admin.ownership import BrokerQueries
from loadmanager.core.bundle_task import Pause
from loadmanager.core.errors import LoadManagerError
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
SERVED_S: Final = 30.0
"""Time after a move within which most of the topics that were active before are to be active.

The longest pause of a client that was measured is 3.9 s.
"""

_AVOIDED_PAUSE_S: Final = 1.0
_LOOK_AGAIN_S: Final = 0.25
_STUCK_LOOK_S: Final = 5.0
STUCK_FOLLOWED_S: Final = 3600.0
"""Time after which a stuck bundle and its target take part again, whatever became of it."""


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
    stuck_s: float = STUCK_S
    served_s: float = SERVED_S
    stuck: dict[BundleId, Move] = field(default_factory=dict, init=False)
    waiting: set[BundleId] = field(default_factory=set, init=False)
    avoided: dict[BrokerId, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _sources: dict[BrokerId, asyncio.Lock] = field(default_factory=dict)
    _targets: dict[BrokerId, asyncio.Lock] = field(default_factory=dict)
    _paused_until_s: dict[BrokerId, float] = field(default_factory=dict)
    _ranges: dict[str, asyncio.Lock] = field(default_factory=dict)
    _following: set[asyncio.Task[None]] = field(default_factory=set)

    def close(self) -> None:
        self._over.set()

    async def move(
        self,
        move: Move,
        ordered: Callable[[], None] = lambda: None,
        sent: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Move a bundle, and look whether the target serves its active topics.

        Calls ``ordered`` before each order, and ``sent`` with each unload. Raises `RightMissing`,
        as any further move would.
        """
        outcome, unloaded_s = await self._moved(move, ordered, sent)
        if outcome.state == "stuck":
            self._follow_stuck(move)
        if outcome.state != "serving" or not move.active:
            return outcome
        served, seen_s = await self._serves_again(move)
        if served:
            pause = None if seen_s is None else Pause(unloaded_s, seen_s)
            return replace(outcome, pause=pause)
        if not await self.brokers.surely_serves(move.target, move.bundle):
            owner = await self.brokers.owner(move.bundle, but=move.target)
            state: OutcomeState = "timed_out" if owner is None else "landed_elsewhere"
            why = f"{move.target} served it, and does not any more"
            return replace(outcome, state=state, reason=why, owner=owner)
        self._avoid(move.target)
        why = (
            f"{move.target} owns it, but most of its topics were not seen active there within "
            f"{self.served_s:g} s"
        )
        back = replace(move, source=move.target, target=move.source)
        try:
            last, _ = await self._moved(back, ordered, sent, to_avoided=True)
        except LoadManagerError as error:
            last = Outcome(state="failed", reason=str(error), owner=move.target)
        where = last.owner or "no broker"
        return replace(
            outcome,
            state="owned_not_served",
            reason=f"{why}; released there once, it is now at {where} ({last.state})",
            attempts=outcome.attempts + last.attempts,
            owner=last.owner,
        )

    async def _moved(
        self,
        move: Move,
        ordered: Callable[[], None],
        sent: Callable[[], None],
        *,
        to_avoided: bool = False,
    ) -> tuple[Outcome, float]:
        """Return the outcome of the orders, and when the source still served the bundle."""
        ranges = self._ranges.setdefault(move.bundle.rpartition("/")[2], asyncio.Lock())
        self.waiting.add(move.bundle)
        try:
            async with ranges, self._turn(move.source, move.target):
                self.waiting.discard(move.bundle)
                if self._over.is_set():
                    why = "the term ended"
                    return Outcome(state="superseded", reason=why, owner=move.source), 0.0
                refusal = await self._why_not(move, to_avoided=to_avoided)
                if refusal is not None:
                    return refusal, 0.0
                order = self._order(move, sent)
                outcome = await order.carried_out(ordered)
                if order.left and outcome.owner != move.target:
                    self._avoid(move.target)
                return outcome, order.unloaded_s
        finally:
            self.waiting.discard(move.bundle)

    async def _serves_again(self, move: Move) -> tuple[bool, float | None]:
        """Return whether most of the active topics are seen at the target, and when they were.

        Topics that count nothing, but are loaded when they are looked up, are served, too. Those
        that were deleted meanwhile are left out.
        """
        until_s, topics, ask = monotonic() + self.served_s, move.active, self.brokers
        while not self._over.is_set():
            counts = await asyncio.gather(*(ask.counted(move.target, one) for one in topics))
            if 2 * sum(bool(count) for count in counts) > len(topics):
                return True, monotonic()
            if monotonic() >= until_s:
                topics = tuple([one for one in topics if await ask.look_up(move.target, one)])
                loaded = [await ask.counted(move.target, one) is not None for one in topics]
                return 2 * sum(loaded) > len(topics) or not topics, None
            await asyncio.sleep(_LOOK_AGAIN_S)
        return True, None

    def _follow_stuck(self, move: Move) -> None:
        if move.bundle not in self.stuck and not self._over.is_set():
            self.stuck[move.bundle] = move
            task = asyncio.create_task(self._until_released(move))
            self._following.add(task)
            task.add_done_callback(self._following.discard)

    async def _until_released(self, move: Move) -> None:
        """Wait until a broker serves a stuck bundle; claim it once its source has released it."""
        until_s = monotonic() + STUCK_FOLLOWED_S
        try:
            while not self._over.is_set() and monotonic() < until_s:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_STUCK_LOOK_S):
                        await self._over.wait()
                if await self.brokers.owner(move.bundle) is not None:
                    return None
                with suppress(RequestFailed):
                    if self.claims and move.bundle not in await self.brokers.owned(move.source):
                        return await self._order(move).claim()
        except RightMissing:
            return None
        finally:
            del self.stuck[move.bundle]

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

    async def _why_not(self, move: Move, *, to_avoided: bool) -> Outcome | None:
        """Return the outcome of a move that cannot begin, None if it may begin."""
        try:
            if not await self.brokers.serves(move.source, move.bundle):
                why = f"{move.source} does not serve it any more"
                return Outcome(state="superseded", reason=why)
        except RequestFailed as error:
            return Outcome(state="failed", reason=str(error), owner=move.source)
        why = await self.brokers.why_not_ready(move.target)
        if not why and move.target in {one.target for one in self.stuck.values()}:
            why = f"the unload of a bundle for {move.target} is stuck"
        if not why and move.target in self.avoided and not to_avoided:
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

    def _order(self, move: Move, sent: Callable[[], None] = lambda: None) -> MoveOrder:
        return MoveOrder(
            brokers=self.brokers,
            claims=self.claims,
            move=move,
            over=self._over,
            sent=sent,
            look_s=self.look_s,
            return_s=self.return_s,
            stuck_s=self.stuck_s,
        )


_SPLIT_ANSWER_S: Final = 30.0
_SPLIT_LOOK_S: Final = 5.0
"""Time after an order within which the broker is expected to serve the parts."""

_SPLIT_PAUSE_S: Final = 0.25


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
            "PUT",
            f"{url}&splitAlgorithmName=specified_positions_divide",
            f"[{cut}]",
            timeout_s=_SPLIT_ANSWER_S,
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
