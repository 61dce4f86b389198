"""Moving one bundle of a Pulsar cluster by its admin REST, and looking where it went.

A move is an ``unload`` with a destination. On the modular manager the destination is a wish
that the first lookup uses up, and with many clients another lookup may be faster. So the
target is asked right away, as Pulsar's leader would ask it (the *claim*), for a topic of the
bundle. Pulsar's own lock decides: if another broker holds it, the claim changes nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic
from typing import Final, Literal
from urllib.parse import quote

from loadmanager.adapters.pulsar_admin.client import PulsarAdmin
from loadmanager.adapters.pulsar_admin.errors import (
    AnswerRefused,
    PulsarAdminError,
    RightMissing,
)
from loadmanager.adapters.pulsar_admin.ownership import read_owned
from loadmanager.core.ids import BrokerId, BundleId, TopicName

OutcomeState = Literal["serving", "failed", "superseded", "timed_out", "landed_elsewhere"]

MOST_ATTEMPTS: Final = 3
LOOK_S: Final = 2.0
"""How long after an order the bundle is looked for at its target."""

CALM_RATIO: Final = 3.0
MOST_CALM_S: Final = 3.0
"""How long a broker that a claimed bundle left keeps its others: so many times as the move took.

A modular broker answers what is sent to a topic that it is closing with an error, upon which
several clients (those in C++ and Python, older ones in Java) close their connection to it. They
look up all topics anew that they have there, and once more if the next move comes before they
are back.
"""

_PAUSE_S: Final = 0.1
_CHANGED: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.PRECONDITION_FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A bundle that is to go from one broker to another; ``topic`` is one of its topics."""

    bundle: BundleId
    source: BrokerId
    target: BrokerId
    topic: TopicName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a move or a split ended.

    Attributes:
        state: ``serving`` at the target, a split bundle in two parts where it was;
            ``superseded`` where the bundle had changed before anything was ordered;
            ``landed_elsewhere`` at another broker than the target; ``timed_out`` where
            no broker says that it serves it.
        reason: why it is not ``serving``, "" if it is.
        attempts: how often it was ordered.
        owner: where it is, None if unknown.
    """

    state: OutcomeState
    reason: str = ""
    attempts: int = 0
    owner: BrokerId | None = None


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
        waiting: the bundles that wait for their turn.
    """

    admin: PulsarAdmin
    address: Callable[[BrokerId], str]
    cluster: str
    brokers: Callable[[], Collection[BrokerId]]
    claims: bool
    look_s: float = LOOK_S
    waiting: set[BundleId] = field(default_factory=set, init=False)
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _sources: dict[BrokerId, asyncio.Lock] = field(default_factory=dict)
    _targets: dict[BrokerId, asyncio.Lock] = field(default_factory=dict)
    _calm_s: dict[BrokerId, float] = field(default_factory=dict)
    _ranges: dict[str, asyncio.Lock] = field(default_factory=dict)

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
                return await self._ordered(move, ordered)
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
            if why := await self._not_ready(target):
                return Outcome(state="failed", reason=why)
            ordered()
            await self._claim(target, topic)
            owner = await self._find(move)
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
            if not await self._serves(move.source, move.bundle):
                why = f"{move.source} does not serve it any more"
                return Outcome(state="superseded", reason=why)
        except RightMissing:
            raise
        except PulsarAdminError as error:
            return Outcome(state="failed", reason=str(error), owner=move.source)
        if why := await self._not_ready(move.target):
            return Outcome(state="failed", reason=why, owner=move.source)
        return None

    async def _not_ready(self, broker: BrokerId) -> str:
        """Return why a broker takes no bundle now, "" if it does."""
        try:
            ready = await self.admin.text(f"{self.address(broker)}/admin/v2/brokers/ready")
        except RightMissing:
            raise
        except PulsarAdminError as error:
            return str(error)
        if ready.strip() != "ok":
            return f"{broker} says {ready[:60]!r} of itself; expected 'ok'"
        return ""

    async def _ordered(self, move: Move, ordered: Callable[[], None]) -> Outcome:
        owner: BrokerId | None = move.source
        said = ""
        for attempt in range(1, MOST_ATTEMPTS + 1):
            said = ""
            ordered()
            try:
                await self._order(move, owner or move.source)
            except RightMissing:
                raise
            except PulsarAdminError as error:
                final = _final_state(error)
                if final is not None:
                    return Outcome(state=final, reason=str(error), attempts=attempt)
                # A broker may have done what it gave no answer to, or a bad one.
                said = str(error)
            owner = await self._find(move)
            if owner == move.target:
                return Outcome(state="serving", attempts=attempt, owner=owner)
        return _not_landed(move, owner, said)

    async def _order(self, move: Move, owner: BrokerId) -> None:
        namespace, _, bounds = move.bundle.rpartition("/")
        path = f"/admin/v2/namespaces/{namespace}/{bounds}/unload"
        destination = quote(move.target, safe="")
        await self.admin.change(
            "PUT", f"{self.address(owner)}{path}?destinationBroker={destination}"
        )
        if self.claims and move.topic is not None:
            await self._claim(move.target, move.topic)

    async def _claim(self, target: BrokerId, topic: TopicName) -> None:
        """Ask the target to serve the bundle; what came of it is seen by looking."""
        local = quote(topic.local, safe="")
        path = f"/lookup/v2/topic/{topic.domain}/{topic.namespace}/{local}?authoritative=true"
        try:
            await self.admin.text(f"{self.address(target)}{path}")
        except RightMissing:
            raise
        except PulsarAdminError:
            return

    async def _find(self, move: Move) -> BrokerId | None:
        """Return the target as soon as it serves the bundle, else who does, if anyone."""
        until_s = monotonic() + self.look_s
        while True:
            if await self._surely_serves(move.target, move.bundle):
                return move.target
            if monotonic() >= until_s:
                break
            await asyncio.sleep(_PAUSE_S)
        others = [broker for broker in self.brokers() if broker != move.target]
        serve = await asyncio.gather(*(self._surely_serves(one, move.bundle) for one in others))
        return next((one for one, does in zip(others, serve, strict=True) if does), None)

    async def _serves(self, broker: BrokerId, bundle: BundleId) -> bool:
        owned, _ = await read_owned(self.admin, self.address(broker), self.cluster, broker)
        return bundle in owned

    async def _surely_serves(self, broker: BrokerId, bundle: BundleId) -> bool:
        try:
            return await self._serves(broker, bundle)
        except RightMissing:
            raise
        except PulsarAdminError:
            return False


def _final_state(error: PulsarAdminError) -> OutcomeState | None:
    """Return how a refused order ends the move, None if it is worth looking and another try."""
    if isinstance(error, AnswerRefused):
        if error.status in _CHANGED:
            return "superseded"
        if error.status == HTTPStatus.CONFLICT:
            return "failed"
    return None


def _not_landed(move: Move, owner: BrokerId | None, said: str) -> Outcome:
    if owner is None:
        why = said or "no broker says that it serves it"
        return Outcome(state="timed_out", reason=why, attempts=MOST_ATTEMPTS)
    if said and owner == move.source:
        return Outcome(state="failed", reason=said, attempts=MOST_ATTEMPTS, owner=owner)
    why = f"{owner} serves it after {MOST_ATTEMPTS} attempts"
    return Outcome(state="landed_elsewhere", reason=why, attempts=MOST_ATTEMPTS, owner=owner)
