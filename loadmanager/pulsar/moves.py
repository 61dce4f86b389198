"""Moves and splits of bundles through Pulsar's admin REST, followed until the owner is known.

A move is an ``unload`` with a destination. With the modular load manager the destination is only
a preference for the next lookup at the leader, and a lookup of a client may reach another broker
first. So a lookup of one of the bundle's topics is sent to the target right away, in the form
in which Pulsar's leader would redirect it there (the *claim*). Pulsar's own lock decides: if
another broker holds it, the claim has no effect.

With the extensible load manager the source closes the bundle's topics first, and notifies their
clients only when the target serves the bundle. If the target ends in the meantime, Pulsar may
assign the bundle to the source again, which then does not serve its topics until it is ordered
to release the bundle once more.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from time import monotonic
from typing import Any, Final
from urllib.parse import quote

from loadmanager.core.bundle_task import TRANSITIONS, BundleTask, Pause, TaskEvent, TaskState
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId, TopicName
from loadmanager.core.splitting.cutting import parts_at
from loadmanager.pulsar.answers import lookup_path, read_owned, read_readiness
from loadmanager.pulsar.client import (
    AnswerRefused,
    PulsarAdmin,
    PulsarAdminError,
    RequestFailed,
    RightMissing,
    Unanswered,
    answer_of,
)

MOST_ATTEMPTS: Final = 3
LOOK_S: Final = 2.0  # Time after an order within which the target is expected to serve the bundle.
# Time to wait for a new owner of a bundle that was released to a target that has ended. Pulsar
# places it when the target's session expires (after 30 s), or its monitor runs (once a minute).
RETURN_S: Final = 120.0
# Time after which an unload counts as stuck. Topics may take `namespaceBundleUnloadingTimeoutMs`
# (60 s) to close; with thousands of them it takes minutes in all.
STUCK_S: Final = 600.0
# Time after which a stuck bundle that no broker lists, and its target, take part again.
STUCK_FOLLOWED_S: Final = 3600.0
# The pause between two claimed moves off one broker: a multiple of the first one's duration, up to
# the longest. Clients to which a modular broker answers an error for a topic that it closes (in C++
# and Python, older ones in Java) close their connection, and look up all their topics there again.
PAUSE_RATIO: Final = 3.0
LONGEST_PAUSE_S: Final = 3.0
# Time without moves to a broker at which a bundle did not arrive, unless the broker ends before. An
# extensible one that hangs during shutdown says that it is ready, but serves no bundle.
AVOIDED_S: Final = 600.0
# Time within which most topics that were active before a move are to be active: clients were
# measured to pause for 3.9 s at most.
SERVED_S: Final = 30.0
_PAUSE_S: Final = 0.25
_WATCH_S: Final = 1.0
_STUCK_LOOK_S: Final = 5.0
_CHANGED: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.PRECONDITION_FAILED})
_COUNTERS: Final = ("msgInCounter", "msgOutCounter", "bytesInCounter", "bytesOutCounter")
_NOBODY: Final = "no broker says that it serves it"
CUT_AT: Final = "specified_positions_divide"


def cut_of(task: BundleTask) -> int | None:
    order = task.splits.get(task.bundle)
    return order.positions[0] if order else None


@dataclass(frozen=True, slots=True)
class BrokerQueries:
    admin: PulsarAdmin
    address: Callable[[BrokerId], str]
    cluster: str
    brokers: Callable[[], Collection[BrokerId]]

    async def owned(self, broker: BrokerId) -> Mapping[BundleId, bool]:
        return await read_owned(self.admin, self.address(broker), self.cluster, broker)

    async def serves(self, broker: BrokerId, bundle: BundleId) -> bool:
        """Return whether a broker reports that it serves a bundle; False if it does not answer."""
        try:
            return (await self.owned(broker)).get(bundle, False)
        except RequestFailed:
            return False

    async def owner(self, bundle: BundleId, *, but: BrokerId | None = None) -> BrokerId | None:
        asked = [broker for broker in self.brokers() if broker != but]
        serve = await asyncio.gather(*(self.serves(one, bundle) for one in asked))
        return next((one for one, does in zip(asked, serve, strict=True) if does), None)

    async def look_up(self, broker: BrokerId, topic: TopicName) -> bool:
        """Return whether there is such a topic; the broker acquires its bundle if nobody has it."""
        try:
            await self.admin.text(f"{self.address(broker)}{lookup_path(topic)}?authoritative=true")
        except RequestFailed as error:
            return not (isinstance(error, AnswerRefused) and error.status == HTTPStatus.NOT_FOUND)
        return True

    async def counted(self, broker: BrokerId, topic: TopicName) -> float | None:
        """Return what a topic has counted at a broker, which loads it; None if it cannot."""
        path = f"{topic.domain}/{topic.namespace}/{quote(topic.local, safe='')}/stats"
        try:
            with answer_of(self.address(broker)):
                stats = await self.admin.json(f"{self.address(broker)}/admin/v2/{path}")
                counts = (stats.get(name, 0) for name in _COUNTERS)
                return float(sum(one for one in counts if isinstance(one, int | float)))
        except PulsarAdminError:
            return None

    async def why_not_ready(self, broker: BrokerId) -> str:
        try:
            return await read_readiness(self.admin, self.address(broker), broker)
        except RequestFailed as error:
            return str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unload:
    """``topic`` is one of the bundle; ``active`` ones had traffic in each of the last windows."""

    bundle: BundleId
    source: BrokerId
    target: BrokerId
    topic: TopicName | None = None
    active: tuple[TopicName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a move, placement or split, after ``attempts`` orders.

    With ``GAVE_UP`` it was refused, or could not be ordered; ``REPLACED``: the bundle had changed,
    or the term had ended, before the order; ``EXPIRED``: no broker reports that it serves it.
    """

    event: TaskEvent
    reason: str = ""
    attempts: int = 0
    owner: BrokerId | None = None
    pause: Pause | None = None

    @property
    def state(self) -> TaskState:
        return TRANSITIONS[TaskState.ORDERED, self.event]


class _Stuck(LoadManagerError):
    """The source has not released the bundle within `STUCK_S`."""


@dataclass(slots=True)
class BundleMover:
    """Carries out moves in one cluster; ``claims`` is whether they need the claim.

    Pulsar confuses the destinations of bundles with equal ranges in different namespaces, and
    closes and opens topics one by one: bundles of one range, source or target move one at a time.
    No move begins to the brokers in ``avoided``, nor to the target of a ``stuck`` move.
    """

    brokers: BrokerQueries
    claims: bool
    look_s: float = LOOK_S
    return_s: float = RETURN_S
    stuck_s: float = STUCK_S
    served_s: float = SERVED_S
    stuck: dict[BundleId, Unload] = field(default_factory=dict, init=False)
    waiting: set[BundleId] = field(default_factory=set, init=False)
    avoided: set[BrokerId] = field(default_factory=set, init=False)
    over: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _turns: defaultdict[tuple[str, str], asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock), init=False
    )
    _paused_until_s: dict[BrokerId, float] = field(default_factory=dict, init=False)
    _following: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def rest(self, pause_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self.over.wait()

    async def move(
        self,
        move: Unload,
        ordered: Callable[[], None] = lambda: None,
        sent: Callable[[], None] = lambda: None,
    ) -> Outcome:
        order = _Order(self, move, ordered, sent)
        outcome = await self._moved(order)
        if outcome.event is TaskEvent.STUCK and move.bundle not in self.stuck:
            self.stuck[move.bundle] = move
            self._follow(self._until_released(move))
        if outcome.event is not TaskEvent.DONE or not move.active:
            return outcome
        served, seen_s = await self._serves_again(move)
        if served:
            pause = None if seen_s is None else Pause(order.unloaded_s, seen_s)
            return replace(outcome, pause=pause)
        if not await self.brokers.serves(move.target, move.bundle):
            owner = await self.brokers.owner(move.bundle, but=move.target)
            event = TaskEvent.EXPIRED if owner is None else TaskEvent.SERVED_ELSEWHERE
            why = f"{move.target} served it, and does not any more"
            return replace(outcome, event=event, reason=why, owner=owner)
        self._avoid(move.target)
        back = replace(move, source=move.target, target=move.source)
        try:
            last = await self._moved(_Order(self, back, ordered, sent), to_avoided=True)
        except LoadManagerError as error:
            last = Outcome(event=TaskEvent.GAVE_UP, reason=str(error), owner=move.target)
        return replace(
            outcome,
            event=TaskEvent.NOT_SERVED,
            reason=f"{move.target} owns it, but most of its topics were not seen active there "
            f"within {self.served_s:g} s; released there once, it is now at "
            f"{last.owner or 'no broker'} ({last.state})",
            attempts=outcome.attempts + last.attempts,
            owner=last.owner,
        )

    async def place(
        self, bundle: BundleId, target: BrokerId, topic: TopicName, ordered: Callable[[], None]
    ) -> Outcome:
        """Make a broker serve a bundle that no broker serves, by the claim alone; as `move`."""
        order = _Order(self, Unload(bundle=bundle, source=target, target=target, topic=topic))
        async with self._turns["target", target]:
            if self.over.is_set():
                return Outcome(event=TaskEvent.REPLACED, reason="the term ended")
            if why := await self.brokers.why_not_ready(target):
                return Outcome(event=TaskEvent.GAVE_UP, reason=why)
            ordered()
            order.attempts = 1
            await order.claim()
            return order.ended_at(await order.find())

    async def _moved(self, order: "_Order", *, to_avoided: bool = False) -> Outcome:
        move, bounds = order.move, order.move.bundle.rpartition("/")[2]
        self.waiting.add(move.bundle)
        try:
            async with self._turns["range", bounds], self._turns["source", move.source]:
                await self.rest(self._paused_until_s.get(move.source, 0.0) - monotonic())
                async with self._turns["target", move.target]:
                    self.waiting.discard(move.bundle)
                    return await self._in_turn(order, to_avoided=to_avoided)
        finally:
            self.waiting.discard(move.bundle)

    async def _in_turn(self, order: "_Order", *, to_avoided: bool) -> Outcome:
        move, began_s = order.move, monotonic()
        try:
            if refusal := await self._why_not(move, to_avoided=to_avoided):
                return refusal
            outcome = await order.carried_out()
            if order.left and outcome.owner != move.target:
                self._avoid(move.target)
            return outcome
        finally:
            if self.claims:
                ended_s = monotonic()
                pause_s = min(PAUSE_RATIO * (ended_s - began_s), LONGEST_PAUSE_S)
                self._paused_until_s[move.source] = ended_s + pause_s

    async def _why_not(self, move: Unload, *, to_avoided: bool) -> Outcome | None:
        if self.over.is_set():
            return Outcome(event=TaskEvent.REPLACED, reason="the term ended", owner=move.source)
        try:
            if not (await self.brokers.owned(move.source)).get(move.bundle):
                why = f"{move.source} does not serve it any more"
                return Outcome(event=TaskEvent.REPLACED, reason=why)
        except RequestFailed as error:
            return Outcome(event=TaskEvent.GAVE_UP, reason=str(error), owner=move.source)
        why = await self.brokers.why_not_ready(move.target)
        if not why and move.target in {one.target for one in self.stuck.values()}:
            why = f"the unload of a bundle for {move.target} is stuck"
        if not why and move.target in self.avoided and not to_avoided:
            why = f"{move.target} says that it is ready, but a move to it did not arrive before"
        return Outcome(event=TaskEvent.GAVE_UP, reason=why, owner=move.source) if why else None

    async def _serves_again(self, move: Unload) -> tuple[bool, float | None]:
        """Return whether most of the active topics are seen at the target, and when they were.

        Topics that load when they are looked up are served, too; deleted ones are left out.
        """
        until_s, topics, ask = monotonic() + self.served_s, move.active, self.brokers
        while not self.over.is_set():
            counts = await asyncio.gather(*(ask.counted(move.target, one) for one in topics))
            if 2 * sum(bool(count) for count in counts) > len(topics):
                return True, monotonic()
            if monotonic() >= until_s:
                topics = tuple([one for one in topics if await ask.look_up(move.target, one)])
                loaded = [await ask.counted(move.target, one) is not None for one in topics]
                return 2 * sum(loaded) > len(topics) or not topics, None
            await self.rest(_PAUSE_S)
        return True, None

    def _follow(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _until_released(self, move: Unload) -> None:
        """Wait until a broker serves a stuck bundle; claim it once its source has released it."""
        until_s = monotonic() + STUCK_FOLLOWED_S
        while not self.over.is_set() and monotonic() < until_s:
            await self.rest(_STUCK_LOOK_S)
            try:
                if await self.brokers.owner(move.bundle) is not None:
                    break
                listed = move.bundle in await self.brokers.owned(move.source)
            except PulsarAdminError as error:
                listed = isinstance(error, RightMissing)  # For now that is not known.
            else:
                if self.claims and not listed:
                    with suppress(RightMissing):
                        await _Order(self, move).claim()
                    break
            if listed:  # With the extensible manager it is not, while it is released.
                until_s = monotonic() + STUCK_FOLLOWED_S
        del self.stuck[move.bundle]

    def _avoid(self, broker: BrokerId) -> None:
        async def until_it_ends() -> None:
            until_s = monotonic() + AVOIDED_S
            while not self.over.is_set() and monotonic() < until_s:
                with suppress(RightMissing):
                    if await self.brokers.why_not_ready(broker):
                        break
                await self.rest(_WATCH_S)
            self.avoided.discard(broker)

        if broker not in self.avoided:
            self.avoided.add(broker)
            self._follow(until_it_ends())


@dataclass(slots=True)
class _Order:
    """The orders of one move; none is sent after the one whose result is unknown (``_last``).

    ``left`` is whether the source may have closed its topics without notifying their clients.
    """

    mover: BundleMover
    move: Unload
    ordered: Callable[[], None] = lambda: None
    sent: Callable[[], None] = lambda: None
    attempts: int = 0
    unloaded_s: float = 0.0
    left: bool = False
    _owner: BrokerId | None = None
    _said: str = ""
    _last: bool = False
    _until_s: float = 0.0

    async def carried_out(self) -> Outcome:
        """An error of ``ordered`` ends it, unless the source may have closed topics by then."""
        self._owner = self.move.source
        try:
            while self.attempts < MOST_ATTEMPTS and not self._last:
                try:
                    if self.left and await self.mover.brokers.why_not_ready(self.move.target):
                        break
                    self.ordered()
                except LoadManagerError as error:
                    if isinstance(error, RightMissing) or not self.left:
                        raise
                    break  # It is no longer ordered, but the source may have closed its topics.
                self.attempts += 1
                outcome = await self._attempt()
                if outcome is not None:
                    return outcome
            return await self._released_again() if self.left else self.ended_at(self._owner)
        except _Stuck as error:
            return Outcome(event=TaskEvent.STUCK, reason=str(error), attempts=self.attempts)

    async def claim(self) -> None:
        if self.move.topic is not None:
            await self.mover.brokers.look_up(self.move.target, self.move.topic)

    async def find(self) -> BrokerId | None:
        """Return the target once it serves the bundle, or later the owner, if any."""
        until_s, brokers = monotonic() + self.mover.look_s, self.mover.brokers
        while not await brokers.serves(self.move.target, self.move.bundle):
            if monotonic() >= until_s:
                return await brokers.owner(self.move.bundle, but=self.move.target)
            await asyncio.sleep(_PAUSE_S)
        return self.move.target

    async def _attempt(self) -> Outcome | None:
        """Order the move once and find the owner; return None if the result is not final."""
        self._said, claims = "", self.mover.claims
        try:
            await self._order(self._owner or self.move.source)
        except RequestFailed as error:
            # The broker may have carried out the order without an answer, or with an error.
            self._said = str(error)
            final = _final_event(error)
            if final is not None and not self.left:
                return Outcome(event=final, reason=self._said, attempts=self.attempts)
            self.left = self.left or (isinstance(error, Unanswered) and not claims)
        if self._last and self.left:
            return None
        self._owner = await self.find()
        if self._owner == self.move.target:
            return self.ended_at(self._owner)
        self.left = self.left or (self._owner is None and not claims)
        return None

    async def _order(self, owner: BrokerId) -> None:
        claims, look_s = self.mover.claims, self.mover.look_s
        url = f"{self._unload_url(owner)}?destinationBroker={quote(self.move.target, safe='')}"
        try:
            if not await self._unloaded(owner, url, _WATCH_S if claims else look_s):
                self.left = self._last = True
        except RequestFailed as error:
            if not claims or self._last or _final_event(error) is not None:
                raise
            await self._released_after(error, owner)
        if claims:
            await self.claim()

    async def _unloaded(self, owner: BrokerId, url: str, look_s: float) -> bool:
        """Send an unload once; return False if the source serves the bundle before the answer.

        Returns before the answer, too, if the bundle is released or at its target. A broker lists
        a bundle that it is releasing as not active, or with the extensible manager not at all.
        """
        brokers, move = self.mover.brokers, self.move
        self._until_s = monotonic() + self.mover.stuck_s
        if self._owner == move.source:
            self.unloaded_s = monotonic()
        self.sent()
        change = asyncio.create_task(brokers.admin.change("PUT", url))
        try:
            while not (await asyncio.wait({change}, timeout=look_s))[0]:
                if self.mover.claims:
                    with suppress(RequestFailed):
                        if move.bundle not in await brokers.owned(owner):
                            return True
                elif await brokers.serves(move.target, move.bundle):
                    return True
                elif await brokers.serves(owner, move.bundle):
                    return False
                self._check_time(owner)
            await change
        finally:
            change.cancel()
        return True

    async def _released_after(self, failed: RequestFailed, owner: BrokerId) -> None:
        """Follow an unload that failed, or had no answer, until it is over: it may be going on."""
        answers_s = monotonic() + self.mover.look_s
        while True:
            try:
                active = (await self.mover.brokers.owned(owner)).get(self.move.bundle)
            except RequestFailed:
                if monotonic() >= answers_s:
                    self._said, self._last = str(failed), True
                    return  # If the source has ended, the target may have the bundle.
            else:
                if active is None:
                    return
                if active:
                    # An order without an answer may be carried out later.
                    self._last = isinstance(failed, Unanswered)
                    raise failed
            self._check_time(owner)
            await self.mover.rest(_WATCH_S)

    def _check_time(self, owner: BrokerId) -> None:
        if monotonic() >= self._until_s:
            raise _Stuck(
                f"{owner} has been unloading it for {self.mover.stuck_s:g} s; expected less. Its "
                "log says which topics do not close"
            )
        if self.mover.over.is_set():
            self._last = True
            raise Unanswered(f"the term ended while {owner} was unloading it")

    async def _released_again(self) -> Outcome:
        """Wait until Pulsar places a bundle that left its source; if there, release it again."""
        # It is ordered even at the end of a term, because it completes an earlier order.
        mover, source = self.mover, self.move.source
        until_s = monotonic() + mover.return_s
        while (owner := await mover.brokers.owner(self.move.bundle)) is None:
            if mover.over.is_set() or monotonic() >= until_s:
                self._said = (
                    f"{self._said or _NOBODY}; if {source} serves it again, unload it there"
                )
                return self.ended_at(None)
            await mover.rest(_WATCH_S)
        if owner == source:
            self._said = f"{owner} had it back and was ordered to release it again"
            until_s, look_s = monotonic() + mover.return_s, mover.look_s
            while not await self._release_taken(look_s) and monotonic() < until_s:
                look_s *= 2
            owner = await self.find()
        return self.ended_at(owner)

    async def _release_taken(self, look_s: float) -> bool:
        """Order the source to release the bundle; return whether that need not be repeated.

        It has to be if the first order still waited for the topic of states, and was undone.
        """
        source = self.move.source
        try:
            return await self._unloaded(source, self._unload_url(source), look_s)
        except RequestFailed as error:
            self._said = f"{source} had it back and did not release it again: {error}"
            await asyncio.sleep(_WATCH_S)
            return not await self.mover.brokers.serves(source, self.move.bundle)

    def _unload_url(self, owner: BrokerId) -> str:
        return f"{self.mover.brokers.address(owner)}/admin/v2/namespaces/{self.move.bundle}/unload"

    def ended_at(self, owner: BrokerId | None) -> Outcome:
        event = TaskEvent.SERVED_ELSEWHERE
        why = f"{owner} serves it after {self.attempts} attempt{'s' if self.attempts > 1 else ''}"
        if self._said:
            why = f"{why}: {self._said}"
        if owner == self.move.target:
            event, why = TaskEvent.DONE, ""
        elif owner is None:
            event, why = TaskEvent.EXPIRED, self._said or _NOBODY
        elif self._said and owner == self.move.source:
            event, why = TaskEvent.GAVE_UP, self._said
        return Outcome(event=event, reason=why, attempts=self.attempts, owner=owner)


def _final_event(error: RequestFailed) -> TaskEvent | None:
    status = error.status if isinstance(error, AnswerRefused) else 0
    if status in _CHANGED:
        return TaskEvent.REPLACED
    return TaskEvent.GAVE_UP if status == HTTPStatus.CONFLICT else None


_SPLIT_ANSWER_S: Final = 30.0
# Time after an order within which the broker is expected to serve the parts.
_SPLIT_LOOK_S: Final = 5.0


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
    """
    try:
        if not (await brokers.owned(broker)).get(bundle):
            why = f"{broker} does not serve it any more"
            return Outcome(event=TaskEvent.REPLACED, reason=why)
    except RequestFailed as error:
        return Outcome(event=TaskEvent.GAVE_UP, reason=str(error))
    ordered()
    why = f"{broker} does not serve both parts"
    url = f"{brokers.address(broker)}/admin/v2/namespaces/{bundle}/split?unload=false"
    by = f"splitAlgorithmName={CUT_AT}"
    try:
        await brokers.admin.change("PUT", f"{url}&{by}", f"[{cut}]", timeout_s=_SPLIT_ANSWER_S)
    except AnswerRefused as error:
        return Outcome(event=TaskEvent.GAVE_UP, reason=str(error), attempts=1, owner=broker)
    except RequestFailed as error:
        why = str(error)
    until_s = monotonic() + _SPLIT_LOOK_S
    while monotonic() < until_s:
        try:
            owned = await brokers.owned(broker)
        except RequestFailed as error:
            why = str(error)
        else:
            if all(owned.get(part) for part in parts_at(bundle, cut)):
                return Outcome(event=TaskEvent.DONE, attempts=1, owner=broker)
        await asyncio.sleep(_PAUSE_S)
    return Outcome(event=TaskEvent.EXPIRED, reason=why, attempts=1)
