import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Protocol

import structlog

from loadmanager.common.cluster_state import ClusterOwners, boundaries_of
from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.common.watching import Subscriptions
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId, BundleId, Namespace, TopicName, namespace_of
from loadmanager.core.wire.records import LeaderRecord, decode_lock, decode_partitions
from loadmanager.ports.coordination import Connection, CoordinationError
from loadmanager.ports.host import Clock
from loadmanager.ports.lookup import AskLeader, NotLeader, Owner, Readiness, Unavailable


class OwnBundles(Protocol):
    @property
    def changes(self) -> Subscriptions: ...

    @property
    def handovers(self) -> Mapping[BundleId, BrokerId]: ...

    def serves(self, bundle: BundleId) -> bool:
        """Return whether the broker serves ``bundle`` and will continue."""


class OwnerResolver:
    """Resolves the broker that a lookup returns for a bundle: its owner, once it serves.

    The owned lists say which broker holds which lock, and which of those bundles the broker has
    not loaded yet. For its own broker a sidecar has better data: it controls it. But not one that
    waits because another sidecar has registered that broker: its watch reports that.
    ``changes`` notifies whenever an answer may have changed.
    """

    def __init__(self, context: Context, own: OwnBundles) -> None:
        self._cluster_state = context.cluster_state
        self._me = context.identity
        self._own = own
        self.changes = Subscriptions()
        context.cluster_state.changes.subscribe(self.changes.notify)
        own.changes.subscribe(self.changes.notify)

    @property
    def version(self) -> int:
        return self._cluster_state.version + self._own.changes.version

    def owner(self, bundle: BundleId) -> Owner | None:
        holding = self._cluster_state.live_owner(bundle)
        if holding is None:
            return None
        if not (self._own.serves(bundle) if self._commands(holding.broker) else holding.serving):
            return None
        registration = self._cluster_state.brokers[holding.broker].registration
        return Owner(
            bundle=bundle,
            broker=holding.broker,
            urls=registration.urls,
            listeners=registration.advertised_listeners,
            fencing_token=holding.fencing_token,
            epoch=self._cluster_state.leader.epoch if self._cluster_state.leader else 0,
        )

    def pending_owner(self, bundle: BundleId) -> BrokerId | None:
        """Return the target of ``bundle`` if it is under way, as far as known here.

        It is known once the target holds the lock, and earlier at the former owner, whose orders
        name the next owner.
        """
        holding = self._cluster_state.live_owner(bundle)
        if holding is not None and not self._commands(holding.broker):
            return None if holding.serving else holding.broker
        planned = self._own.handovers.get(bundle)
        if planned in self._cluster_state.brokers:
            return planned
        return None if holding is None else holding.broker

    def _commands(self, broker: BrokerId) -> bool:
        if broker != self._me.broker:
            return False
        return self._cluster_state.brokers[broker].registration.sidecar_url == self._me.sidecar_url


log = structlog.get_logger()

_ASK_AGAIN_S = 1.0
_READ_WITHIN_S = 0.5
_MOST_SPLITS_MEANWHILE = 5


class BundleCut(Unavailable):
    """The bundle was split, or its namespace deleted: the topic is in another one now."""


class _Following(ExitStack):
    """The list that a lookup follows while it waits, or all of them if few; none at first.

    If a leader is slow because many bundles are to be placed, all waiting lookups on all
    sidecars would read each change of each list, and slow everything down further. So with many
    lists only that of the lock's ``holder`` is followed, and the holder is looked up once a
    second.
    """

    def __init__(
        self, lists: ClusterOwners, clock: Clock, holder: Callable[[], Awaitable[BrokerId | None]]
    ) -> None:
        super().__init__()
        self._lists = lists
        self._clock = clock
        self._holder = holder
        self._look_at_s = -math.inf
        self._followed: tuple[BrokerId | None, ...] = ()

    async def find(self, broker: BrokerId | None) -> None:
        """Follow the list of ``broker``; where that is unknown, all lists or the holder's."""
        if broker is not None or self._lists.is_small:
            self._follow(broker)
        elif self._clock.monotonic_s() >= self._look_at_s:
            self._follow(await self._holder())
            self._look_at_s = self._clock.monotonic_s() + _ASK_AGAIN_S

    def _follow(self, broker: BrokerId | None) -> None:
        if self._followed != (broker,):
            self.close()
            self._followed = (broker,)
            if broker is not None or self._lists.is_small:
                self.enter_context(self._lists.followed(broker))


class LookupService:
    def __init__(
        self,
        context: Context,
        naming: OwnerResolver,
        ask_leader: AskLeader,
        assigned: Callable[[BundleId], Awaitable[BrokerId]],
        *,
        settings: RuntimeSettings,
        unready: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._coordination = context.coordination
        self._unready = unready
        self._cluster_state = context.cluster_state
        self._history = context.history
        self._troubles = context.troubles
        self._identity = context.identity
        self._clock = context.clock
        self._naming = naming
        self._ask_leader = ask_leader
        self._assigned = assigned
        self._topic_hash = context.topic_hash
        self._settings = settings
        self._waiting: dict[BundleId, asyncio.Task[Owner]] = {}

    @property
    def cluster_state_version(self) -> int:
        return self._naming.version

    @property
    def leader(self) -> LeaderRecord | None:
        return self._cluster_state.leader

    def readiness(self) -> Readiness:
        """Return ready once the state is complete, the session connected and the broker leased.

        No client is sent to a broker that accepts no lease or no order of this sidecar.
        """
        reasons = [*self._unready()]
        connection = self._coordination.session.connection
        if connection is not Connection.CONNECTED:
            reasons.append(f"the ZooKeeper session is {connection.value}")
        if not self._cluster_state.complete:
            reasons.append("the cluster has not been read yet")
        elif self._cluster_state.leader is None:
            reasons.append("no leader is elected")
        trouble = self._history.trouble
        history = (f"history: {trouble}",) if trouble else ()
        return Readiness(not reasons, tuple(reasons), (*history, *self._troubles.values()))

    def owner_if_known(self, topic: TopicName) -> Owner | None:
        boundaries = self._cluster_state.known_boundaries(topic.namespace)
        if boundaries is None:
            return None
        return self._naming.owner(boundaries.at(self._topic_hash.position(topic)))

    async def find_owner(self, topic: TopicName) -> Owner:
        for _ in range(_MOST_SPLITS_MEANWHILE):
            bundle = await self.bundle_of(topic)
            try:
                return await self._find(bundle)
            except BundleCut as cut:
                log.debug("lookup.bundle.split", topic=str(topic), why=str(cut))
        raise Unavailable(f"the bundle of {topic} is being split again and again")

    async def bundle_of(self, topic: TopicName) -> BundleId:
        boundaries = await self.boundaries(topic.namespace)
        return boundaries.at(self._topic_hash.position(topic))

    async def partitions(self, topic: TopicName) -> int:
        await self.boundaries(topic.namespace)
        path = znodes.partitions(topic)
        try:
            node = await self._coordination.get(path)
            return 0 if node is None else decode_partitions(path, node.data)
        except (CoordinationError, MalformedContent) as error:
            raise Unavailable(f"the partitions of {topic} cannot be read: {error}") from error

    async def boundaries(self, namespace: Namespace) -> Boundaries:
        return await boundaries_of(self._cluster_state, namespace)

    async def assign(self, bundle: BundleId) -> BrokerId:
        await self.boundaries(namespace_of(bundle))
        if self._was_cut(bundle):
            # The requester may have seen a split that this sidecar has not.
            try:
                await self._cluster_state.reread_boundaries(namespace_of(bundle))
            except (CoordinationError, MalformedContent) as error:
                raise Unavailable(f"the bundles around {bundle} cannot be read: {error}") from error
            if self._was_cut(bundle):
                raise BundleCut(f"{bundle} is no bundle of its namespace now")
        return await self._assigned(bundle)

    # --- waiting -------------------------------------------------------------------

    def _was_cut(self, bundle: BundleId) -> bool:
        boundaries = self._cluster_state.known_boundaries(namespace_of(bundle))
        return boundaries is None or bundle not in boundaries

    async def _find(self, bundle: BundleId) -> Owner:
        """Find the owner; concurrent lookups of one bundle share the wait."""
        owner = self._naming.owner(bundle)
        if owner:
            return owner
        task = self._waiting.get(bundle)
        if task is None:
            task = asyncio.ensure_future(self._search(bundle))
            self._waiting[bundle] = task

            def ended(done: asyncio.Task[Owner]) -> None:
                self._waiting.pop(bundle, None)
                if not done.cancelled():
                    done.exception()  # The requester may have gone away, and the error is no bug.

            task.add_done_callback(ended)
        return await asyncio.shield(task)

    async def _search(self, bundle: BundleId) -> Owner:
        """Find the owner: in the list of the lock's broker, in all if few, or by the leader.

        A lookup that waits follows the list of the broker that is to own the bundle: each change
        of it reaches it at once. While it is not known which one that is, it follows all lists
        if they are few, and else looks once a second which broker has the lock.
        """
        lists = self._cluster_state.lists
        if await self._read_again(bundle):
            owner = self._naming.owner(bundle)
            if owner is not None:
                return owner
        elif lists.is_small:
            await lists.until_read(_READ_WITHIN_S)
        with _Following(lists, self._clock, partial(self._holder, bundle)) as following:
            return await self._await_owner(bundle, following)

    async def _read_again(self, bundle: BundleId) -> bool:
        """Read the list that named the owner last, or else the lock, and its broker's list.

        Returns whether the owner of the bundle is known by that, which may be none. Most bundles
        stay where they are, so no lock is read for them.
        """
        lists, listed = self._cluster_state.lists, self._cluster_state.listed_owner(bundle)
        if listed is not None:
            if not await lists.until_read(_READ_WITHIN_S, listed):
                return False
            listed = self._cluster_state.listed_owner(bundle)
        if listed is not None or lists.all_read:
            return True
        try:
            holder = await self._holder_of_lock(bundle)
        except (TimeoutError, CoordinationError, MalformedContent) as error:
            log.debug("lookup.lock.read_failed", bundle=bundle, why=str(error))
            return False
        return holder is None or await lists.until_read(_READ_WITHIN_S, holder)

    async def _holder(self, bundle: BundleId) -> BrokerId | None:
        try:
            return await self._holder_of_lock(bundle)
        except (TimeoutError, CoordinationError, MalformedContent) as error:
            log.debug("lookup.lock.read_failed", bundle=bundle, why=str(error))
            return None

    async def _holder_of_lock(self, bundle: BundleId) -> BrokerId | None:
        """Raises also `MalformedContent`, and `TimeoutError` after `_READ_WITHIN_S`."""
        path = znodes.lock(bundle)
        async with asyncio.timeout(_READ_WITHIN_S):
            node = await self._coordination.get(path)
        return None if node is None else decode_lock(path, node.data).broker

    async def _await_owner(self, bundle: BundleId, following: "_Following") -> Owner:
        """Return the owner; a leader is asked, unless the bundle is under way and not for long.

        Without a leader the lookup waits for the next one: if followers decided themselves, two of
        them could decide on different views.
        """
        begun_s = self._clock.monotonic_s()
        deadline_s = begun_s + self._settings.now.config.lookup.wait_s
        ask_again_at_s = 0.0
        why = "no broker owns it yet"
        while True:
            owner, came = self._naming.owner(bundle), self._naming.changes.version
            if owner is not None:
                return owner
            now_s = self._clock.monotonic_s()
            coming = self._naming.pending_owner(bundle) if now_s - begun_s < _ASK_AGAIN_S else None
            leader = self._cluster_state.leader
            if self._was_cut(bundle):
                raise BundleCut(f"{bundle} is no bundle of its namespace now")
            if coming is not None or leader is None:
                why = self._what_is_awaited(coming, why)
                await following.find(coming)
            elif ask_again_at_s <= now_s and (now_s < deadline_s or not ask_again_at_s):
                planned, why = await self._ask(bundle, leader, deadline_s - now_s)
                ask_again_at_s = self._clock.monotonic_s() + _ASK_AGAIN_S
                await following.find(planned)
                continue
            if now_s >= deadline_s:
                raise Unavailable(f"{bundle}: {why}")
            if self._naming.changes.version == came:
                await self._naming.changes.wait(min(deadline_s - now_s, _ASK_AGAIN_S))

    async def _ask(
        self, bundle: BundleId, leader: LeaderRecord, left_s: float
    ) -> tuple[BrokerId | None, str]:
        try:
            async with asyncio.timeout(max(left_s, _ASK_AGAIN_S)):
                if leader.instance == self._identity.instance:
                    planned = await self._assigned(bundle)
                else:
                    planned = await self._ask_leader(leader, bundle)
        except TimeoutError:
            return None, "the leader has not decided in time"
        except (NotLeader, Unavailable) as error:
            log.debug("lookup.assignment.failed", bundle=bundle, why=str(error))
            return None, str(error)
        return planned, f"{planned} is to own it and does not serve it yet"

    def _what_is_awaited(self, coming: BrokerId | None, before: str) -> str:
        if coming is not None:
            return f"{coming} is to own it and does not serve it yet"
        return "no leader is elected" if self._cluster_state.leader is None else before
