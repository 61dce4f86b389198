"""One move of a bundle through Pulsar's admin REST, followed until the bundle's owner is known.

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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic
from typing import Final, Literal
from urllib.parse import quote

from loadmanager.adapters.pulsar_admin.client import (
    AnswerRefused,
    RequestFailed,
    RightMissing,
    Unanswered,
)
from loadmanager.adapters.pulsar_admin.ownership import BrokerQueries
from loadmanager.core.bundle_task import Pause
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId, TopicName

OutcomeState = Literal[
    "serving", "failed", "superseded", "timed_out", "landed_elsewhere", "stuck", "owned_not_served"
]

MOST_ATTEMPTS: Final = 3
LOOK_S: Final = 2.0
"""Time after an order within which the target is expected to serve the bundle."""
RETURN_S: Final = 120.0
"""Time to wait for a new owner of a bundle that was released to a target that has ended.

Pulsar places it when the target's session has expired (by default after 30 s), or at the next
run of its monitor, once a minute.
"""

STUCK_S: Final = 600.0
"""Time after which an unload that is not over counts as stuck.

Pulsar lets topics take `namespaceBundleUnloadingTimeoutMs` (60 s) to close, and then releases the
bundle; with thousands of topics that takes minutes in all.
"""

_PAUSE_S: Final = 0.25
_WATCH_S: Final = 1.0
_RETURN_PAUSE_S: Final = 1.0
_CHANGED: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.PRECONDITION_FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A bundle that is to move from one broker to another; ``topic`` is one of its topics.

    The ``active`` topics had traffic in each of the last windows.
    """

    bundle: BundleId
    source: BrokerId
    target: BrokerId
    topic: TopicName | None = None
    active: tuple[TopicName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a move, placement or split, after ``attempts`` orders.

    ``state`` is ``serving`` if the target serves the bundle, or its broker both parts of a split;
    ``failed`` if it was refused or could not be ordered; ``superseded`` if the bundle had changed,
    or the term had ended, before the order; ``landed_elsewhere`` if another broker than the target
    serves it; ``timed_out`` if no broker reports that it does; ``stuck`` if its source still
    releases it after `STUCK_S`; ``owned_not_served`` if the target owns it, but does not load its
    topics. ``reason`` is why it is not ``serving``, "" if it is.
    """

    state: OutcomeState
    reason: str = ""
    attempts: int = 0
    owner: BrokerId | None = None
    pause: Pause | None = None


class _Stuck(LoadManagerError):
    """The source has not released the bundle within `STUCK_S`."""


@dataclass(slots=True, kw_only=True)
class MoveOrder:
    """The orders of one move, and its progress.

    ``claims`` is whether moves need the claim, as with the modular load manager; ``left`` whether
    the source may have closed its topics without notifying their clients. ``sent`` is called with
    each unload. No order is sent after the one whose result is unknown (``_last``).
    """

    brokers: BrokerQueries
    claims: bool
    move: Move
    over: asyncio.Event
    sent: Callable[[], None] = lambda: None
    look_s: float = LOOK_S
    return_s: float = RETURN_S
    stuck_s: float = STUCK_S
    unloaded_s: float = field(default=0.0, init=False)
    _attempts: int = field(default=0, init=False)
    _owner: BrokerId | None = field(default=None, init=False)
    _said: str = field(default="", init=False)
    left: bool = field(default=False, init=False)
    _last: bool = field(default=False, init=False)

    async def carried_out(self, ordered: Callable[[], None]) -> Outcome:
        """Order the move, calling ``ordered`` before each attempt.

        Raises `RightMissing`: 401 or 403, which any further move would get, too;
        `LoadManagerError`: as ``ordered``, unless the source may have closed topics by then.
        """
        self._owner = self.move.source
        try:
            return await self._attempts_made(ordered)
        except _Stuck as error:
            return Outcome(state="stuck", reason=str(error), attempts=self._attempts)

    async def _attempts_made(self, ordered: Callable[[], None]) -> Outcome:
        while self._attempts < MOST_ATTEMPTS and not self._last:
            try:
                if self.left and await self.brokers.why_not_ready(self.move.target):
                    break
                ordered()
            except RightMissing:
                raise
            except LoadManagerError:
                if not self.left:
                    raise
                break  # It is no longer ordered, but the source may have closed its topics.
            self._attempts += 1
            outcome = await self._attempt()
            if outcome is not None:
                return outcome
        if self.left:
            return await self._released_again()
        return self._ended_at(self._owner)

    async def claim(self) -> None:
        """Send the target a lookup that makes it serve the bundle; `find` shows the result."""
        if self.move.topic is not None:
            await self.brokers.look_up(self.move.target, self.move.topic)

    async def find(self) -> BrokerId | None:
        """Return the target once it serves the bundle, or after ``look_s`` the owner, if any."""
        until_s = monotonic() + self.look_s
        while True:
            if await self.brokers.surely_serves(self.move.target, self.move.bundle):
                return self.move.target
            if monotonic() >= until_s:
                return await self.brokers.owner(self.move.bundle, but=self.move.target)
            await asyncio.sleep(_PAUSE_S)

    async def _attempt(self) -> Outcome | None:
        """Order the move once and find the owner; return None if the result is not final."""
        self._said = ""
        try:
            await self._order(self._owner or self.move.source)
        except RequestFailed as error:
            # The broker may have carried out the order without an answer, or with an error.
            self._said = str(error)
            final = _final_state(error)
            if final is not None and not self.left:
                return Outcome(state=final, reason=self._said, attempts=self._attempts)
            self.left = self.left or (isinstance(error, Unanswered) and not self.claims)
        if self._last and self.left:
            return None
        self._owner = await self.find()
        if self._owner == self.move.target:
            return self._ended_at(self._owner)
        self.left = self.left or (self._owner is None and not self.claims)
        return None

    async def _order(self, owner: BrokerId) -> None:
        destination = quote(self.move.target, safe="")
        url, until_s = f"{self._unload_url(owner)}?destinationBroker={destination}", self._until_s()
        try:
            if not await self._sent(owner, url, _WATCH_S if self.claims else self.look_s):
                self.left = self._last = True
        except RequestFailed as error:
            if not self.claims or self._last or _final_state(error) is not None:
                raise
            await self._released_after(error, owner, until_s)
        if self.claims:
            await self.claim()

    async def _sent(self, owner: BrokerId, url: str, look_s: float) -> bool:
        """Send an unload once; return False if the source serves the bundle before the answer.

        Returns before the answer, too, if the bundle is released or at its target. A broker lists
        a bundle that it is releasing as not active, or with the extensible manager not at all.
        Raises `_Stuck`: it is not over in time.
        """
        change, until_s = self._unload(url), self._until_s()
        try:
            while not (await asyncio.wait({change}, timeout=look_s))[0]:
                if self.claims:
                    with suppress(RequestFailed):
                        if await self._active(owner) is None:
                            return True
                elif await self.brokers.surely_serves(self.move.target, self.move.bundle):
                    return True
                elif await self.brokers.surely_serves(owner, self.move.bundle):
                    return False
                self._check_time(owner, until_s)
            await change
        finally:
            change.cancel()
        return True

    def _until_s(self) -> float:
        return monotonic() + self.stuck_s

    async def _released_after(self, failed: RequestFailed, owner: BrokerId, until_s: float) -> None:
        """Follow an unload that failed, or had no answer, until it is over: it may be going on.

        Raises as `_sent`; `RequestFailed`: the source serves the bundle.
        """
        answers_s = monotonic() + self.look_s
        while True:
            try:
                active = await self._active(owner)
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
            self._check_time(owner, until_s)
            await self._rest(_WATCH_S)

    async def _active(self, owner: BrokerId) -> bool | None:
        """Return whether a broker serves the bundle, None if it does not own it."""
        return (await self.brokers.owned(owner)).get(self.move.bundle)

    def _unload(self, url: str) -> asyncio.Task[None]:
        if self._owner == self.move.source:
            self.unloaded_s = monotonic()
        self.sent()
        return asyncio.create_task(self.brokers.admin.change("PUT", url))

    def _check_time(self, owner: BrokerId, until_s: float) -> None:
        """Raises `_Stuck`; `Unanswered`: the term ended first."""
        if monotonic() >= until_s:
            raise _Stuck(
                f"{owner} has been unloading it for {self.stuck_s:g} s; expected less. Its log "
                "says which topics do not close"
            )
        if self.over.is_set():
            self._last = True
            raise Unanswered(f"the term ended while {owner} was unloading it")

    async def _rest(self, pause_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self.over.wait()

    async def _released_again(self) -> Outcome:
        """Wait until Pulsar places a bundle that left its source; if back there, release it again.

        The release is ordered even at the end of a term, because it completes an earlier order.
        """
        until_s = monotonic() + self.return_s
        while (owner := await self.brokers.owner(self.move.bundle)) is None:
            if self.over.is_set() or monotonic() >= until_s:
                why = self._said or "no broker says that it serves it"
                self._said = f"{why}; if {self.move.source} serves it again, unload it there"
                return self._ended_at(None)
            await self._rest(_RETURN_PAUSE_S)
        if owner == self.move.source:
            self._said = f"{owner} had it back and was ordered to release it again"
            until_s, look_s = monotonic() + self.return_s, self.look_s
            while not await self._told_to_release(owner, look_s) and monotonic() < until_s:
                look_s *= 2
            owner = await self.find()
        return self._ended_at(owner)

    async def _told_to_release(self, source: BrokerId, look_s: float) -> bool:
        """Order the source to release the bundle; return whether that need not be repeated.

        It has to be repeated if the first order was still waiting for the topic of Pulsar's
        bundle states, and was undone afterwards.
        """
        try:
            return await self._sent(source, self._unload_url(source), look_s)
        except RequestFailed as error:
            self._said = f"{source} had it back and did not release it again: {error}"
            await asyncio.sleep(_RETURN_PAUSE_S)
            return not await self.brokers.surely_serves(source, self.move.bundle)

    def _unload_url(self, owner: BrokerId) -> str:
        namespace, _, bounds = self.move.bundle.rpartition("/")
        return f"{self.brokers.address(owner)}/admin/v2/namespaces/{namespace}/{bounds}/unload"

    def _ended_at(self, owner: BrokerId | None) -> Outcome:
        attempts, said = self._attempts, self._said
        if owner == self.move.target:
            return Outcome(state="serving", attempts=attempts, owner=owner)
        if owner is None:
            why = said or "no broker says that it serves it"
            return Outcome(state="timed_out", reason=why, attempts=attempts)
        if said and owner == self.move.source:
            return Outcome(state="failed", reason=said, attempts=attempts, owner=owner)
        why = f"{owner} serves it after {attempts} attempt{'s' if attempts > 1 else ''}"
        why = f"{why}: {said}" if said else why
        return Outcome(state="landed_elsewhere", reason=why, attempts=attempts, owner=owner)


def _final_state(error: RequestFailed) -> OutcomeState | None:
    """Return the final state after a refused order, None if the move may still succeed."""
    if isinstance(error, AnswerRefused):
        if error.status in _CHANGED:
            return "superseded"
        if error.status == HTTPStatus.CONFLICT:
            return "failed"
    return None
