"""Clears the locks that earlier memberships of this broker left.

They are deleted once the broker serves nothing under them, except those of bundles that it is to
own: the lock worker replaces these in one commit, so that no other broker can take them in
between and the broker serves them without interruption. A lock that is not replaced after all,
because its order or its namespace was deleted meanwhile, is deleted as soon as this is detected:
its session may never expire.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence

import structlog

from loadmanager.agent.ownership import PARALLEL, OwnershipWorker
from loadmanager.agent.registration import Membership, listed_in
from loadmanager.common.context import Context
from loadmanager.common.watching import readable
from loadmanager.core import znodes
from loadmanager.core.ids import BundleId
from loadmanager.core.orders import encode_owned
from loadmanager.core.ownership import Phase, holds_lock
from loadmanager.core.wire.records import decode_lock
from loadmanager.ports.broker import BrokerError
from loadmanager.ports.coordination import (
    Check,
    CommitRejected,
    CoordinationError,
    Delete,
    Node,
    Operation,
    SetData,
)

log = structlog.get_logger()

_ATTEMPTS = 10
_LOOK_S = 0.5


class FormerLocks:
    def __init__(self, context: Context, ownerships: OwnershipWorker) -> None:
        self._context = context
        self._broker = context.identity.broker
        self._ownerships = ownerships
        self._tokens: dict[BundleId, int] = {}
        # In sequence, each lock would wait for ZooKeeper in turn.
        self._parallel = asyncio.Semaphore(PARALLEL)

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def add(self, tokens: Mapping[BundleId, int]) -> None:
        for bundle, token in tokens.items():
            self._tokens[bundle] = max(token, self._tokens.get(bundle, 0))

    async def release(self, leased_until_s: float) -> None:
        """Delete this session's locks once nothing is served under them; safe to repeat."""
        coordination = self._context.coordination
        # This includes locks taken by a commit that was under way when that membership ended: it
        # is applied before the heartbeat, or never.
        await coordination.heartbeat()
        node = await coordination.get(znodes.owned(self._broker))
        if node is not None and node.stat.ephemeral_owner == coordination.session.session_id:
            self.add(listed_in(node, self._broker))
        if self._tokens and self._context.clock.monotonic_s() > leased_until_s:
            await self._release_all()
            self._tokens = {}
            self._ownerships.broker_lost()

    async def clear(self, membership: Membership, serving: Mapping[BundleId, int]) -> None:
        """Unload bundles served without a lock, and delete the locks that are not wanted.

        The broker already obeys this membership's epoch, so no earlier agent can make it load them
        again. Raises `BrokerError` if it did not confirm that it stopped, alone or in a group.
        """
        for bundle, token in serving.items():
            if bundle not in self._tokens:
                # For example a split bundle: the locks of its parts protect it, so it must be
                # unloaded before one of them is released.
                await self._unload(membership, bundle, token)
        orders = self._ownerships.orders
        wanted = orders.bundles if orders else frozenset()
        clearing = [
            self._clear(membership, bundle, token)
            for bundle, token in self._tokens.items()
            if bundle not in wanted
        ]
        # No `TaskGroup`: one that is only waited for leaves this task marked as being cancelled if
        # a part fails. All are waited for, so that none deletes what the next membership takes.
        outcomes = await asyncio.gather(*clearing, return_exceptions=True)
        errors = [one for one in outcomes if isinstance(one, Exception)]
        if errors:
            raise ExceptionGroup("former locks could not be cleared", errors)
        # What could not be deleted is kept, and tried again.
        gone = [bundle for bundle in outcomes if isinstance(bundle, str)]
        for bundle in gone:
            self._tokens.pop(bundle, None)

    async def run(self, membership: Membership) -> None:
        """Delete wanted locks that are not taken over after all, until cancelled."""
        while True:
            await self._context.clock.sleep(_LOOK_S)
            untaken = self._untaken()
            clearing = [self._try_to_clear(membership, b, t) for b, t in untaken.items()]
            await asyncio.gather(*clearing)
            self._context.metrics.former_locks_left.set(len(untaken.keys() & self._tokens.keys()))

    def _untaken(self) -> dict[BundleId, int]:
        untaken: dict[BundleId, int] = {}
        for bundle, token in tuple(self._tokens.items()):
            phase = self._ownerships.records.phase(bundle)
            if phase is Phase.FREE:
                untaken[bundle] = token
            elif holds_lock(phase):
                del self._tokens[bundle]
        return untaken

    async def _try_to_clear(self, membership: Membership, bundle: BundleId, token: int) -> None:
        async with self._parallel:
            try:
                folder = await self._context.coordination.get(znodes.lock_folder(bundle))
                # Read before: the lock worker may begin to take it over at any time from here on,
                # and that changes the folder.
                if self._ownerships.records.phase(bundle) is not Phase.FREE:
                    return
                if folder is not None:
                    await self._unload(membership, bundle, token)
                    await self._delete(membership, bundle, folder)
                self._tokens.pop(bundle, None)
            except (BrokerError, CoordinationError) as error:
                log.debug("bundle.lock.delete_failed", bundle=bundle, why=str(error))

    async def _unload(self, membership: Membership, bundle: BundleId, token: int) -> None:
        epoch = membership.agent_epoch
        await self._context.broker.unload(bundle, agent_epoch=epoch, fencing_token=token)

    async def _clear(self, membership: Membership, bundle: BundleId, token: int) -> BundleId | None:
        """Return the bundle once its lock is gone, None if it could not be deleted."""
        async with self._parallel:
            await self._unload(membership, bundle, token)
            for _ in range(_ATTEMPTS):
                try:
                    await self._delete(membership, bundle, None)
                except CommitRejected as rejected:
                    # Any lock of the namespace may have been taken since, this one or another.
                    why = str(rejected)
                else:
                    return bundle
            log.warning("bundle.lock.delete_rejected", bundle=bundle, why=why)
            return None

    async def _delete(self, membership: Membership, bundle: BundleId, beside: Node | None) -> None:
        """Delete a lock if it still belongs to this broker; raises `CommitRejected`: it may not.

        ``beside`` the lock worker, that is the folder as it was before: what is taken since stays.
        """
        path, folder_path = znodes.lock(bundle), znodes.lock_folder(bundle)
        folder = beside or await self._context.coordination.get(folder_path)
        node = await self._context.coordination.get(path)
        if node is None or folder is None:
            return
        holder = None
        with readable(path):
            holder = decode_lock(path, node.data).broker
        if holder != membership.broker:
            return
        if beside is None and node.stat.ephemeral_owner == membership.session_id:
            # Only another agent of this broker, which deletes our mark, would replace it.
            unchanged = Check(znodes.agent(membership.broker, membership.session_id), 0)
        else:
            # A lock taken since by another broker has the same version, but taking any lock
            # changes the folder: so that lock is not deleted.
            unchanged = Check(folder_path, folder.stat.version)
        await self._context.coordination.commit([unchanged, Delete(path, node.stat.version)])
        log.info("bundle.lock.deleted", bundle=bundle)

    async def _release_all(self) -> None:
        """Delete the locks that this session holds, and empty its list; its lease has ended.

        Its registration goes with the first locks: lookups name registered brokers by their lists.
        """
        coordination, broker = self._context.coordination, self._broker
        session_id = coordination.session.session_id
        mark = znodes.agent(broker, session_id)
        marked = await coordination.get(mark) is not None
        ordered, released = sorted(self._tokens), 0
        for first in range(0, len(ordered), PARALLEL):
            batch = ordered[first : first + PARALLEL]
            unchanged = [Check(mark, 0)] if marked else await self._folders_unchanged(batch)
            listing = () if first else (znodes.registration(broker), znodes.loads(broker))
            unlisted, deletes, emptied = await asyncio.gather(
                self._deletes_of(session_id, listing),
                self._deletes_of(session_id, list(map(znodes.lock, batch))),
                # Only with the last batch: no agent deletes a lock that is in no list.
                self._emptied_list(session_id, last=batch[-1] == ordered[-1]),
            )
            if unlisted or deletes or emptied:
                await coordination.commit([*unchanged, *unlisted, *deletes, *emptied])
            released += len(deletes)
        log.info("broker.locks.released", broker=broker, bundles=released)

    async def _emptied_list(self, session_id: int, *, last: bool) -> list[Operation]:
        """Return the write that empties this session's list, in the last commit only."""
        path = znodes.owned(self._broker)
        node = await self._context.coordination.get(path) if last else None
        if node is None or node.stat.ephemeral_owner != session_id:
            return []
        return [SetData(path, encode_owned({}), node.stat.version)]

    async def _folders_unchanged(self, bundles: Collection[BundleId]) -> list[Operation]:
        """Return checks that fail if another agent of this broker replaces one of these locks."""
        paths = sorted({znodes.lock_folder(bundle) for bundle in bundles})
        folders = await asyncio.gather(*map(self._context.coordination.get, paths))
        return [
            Check(path, folder.stat.version)
            for path, folder in zip(paths, folders, strict=True)
            if folder is not None
        ]

    async def _deletes_of(self, session_id: int, paths: Sequence[str]) -> list[Operation]:
        nodes = await asyncio.gather(*map(self._context.coordination.get, paths))
        return [
            Delete(path, node.stat.version)
            for path, node in zip(paths, nodes, strict=True)
            if node is not None and node.stat.ephemeral_owner == session_id
        ]
