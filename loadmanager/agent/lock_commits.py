"""Writes ownership locks: batches of creates and deletes, each with the owned list.

The result of each lock is returned; the state of bundles is not changed here.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import structlog

from loadmanager.agent.owned_list import OwnedList
from loadmanager.agent.range_changes import RangeChange
from loadmanager.agent.registration import Membership
from loadmanager.common.context import Context
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId, Namespace, namespace_of, range_of
from loadmanager.core.orders import Orders
from loadmanager.core.wire.records import decode_lock
from loadmanager.ports.coordination import (
    Check,
    CommitRejected,
    Create,
    Delete,
    Disconnected,
    Node,
    NodeExists,
    NodeMissing,
    Operation,
    SetData,
    TooLarge,
)

log = structlog.get_logger()


class LockResult(StrEnum):
    TAKEN = "taken"
    DROPPED = "dropped"
    HELD_BY_ANOTHER = "held_by_another"
    NOT_A_BUNDLE = "not_a_bundle"
    """Its namespace does not (or no longer) contain such a bundle."""
    ORDERS_IN_DOUBT = "orders_in_doubt"
    NOT_APPLIED = "not_applied"
    """The connection was lost, and the commit was not applied."""
    TAKE_TOO_LARGE = "take_too_large"
    DROP_TOO_LARGE = "drop_too_large"


@dataclass(slots=True)
class LockOutcomes:
    """The results for the locks that were to be taken and dropped.

    ``token`` is the fencing token of the taken locks, ``error`` why some did not fit.
    """

    results: dict[BundleId, LockResult] = field(default_factory=dict)
    token: int = 0
    error: TooLarge | None = None

    def note(self, bundles: Iterable[BundleId], result: LockResult) -> None:
        self.results |= dict.fromkeys(bundles, result)

    def of(self, *results: LockResult) -> list[BundleId]:
        return [bundle for bundle, result in self.results.items() if result in results]


@dataclass(frozen=True, slots=True)
class _Examined:
    """The versions of a lock of ours to be replaced, and of its folder read before it."""

    version: int
    folder_version: int


class LockCommits:
    """The only writer of this broker's locks, during one membership.

    ``orders`` returns the obeyed orders, None while orders are in doubt.
    """

    def __init__(
        self,
        context: Context,
        owned_list: OwnedList,
        orders: Callable[[], Orders | None],
        membership: Membership,
    ) -> None:
        self._oversized = context.oversized
        self._coordination = context.coordination
        self._cluster_state = context.cluster_state
        self._identity = context.identity
        self._list = owned_list
        self._orders = orders
        self._session_id = membership.session_id
        self._replace: dict[BundleId, _Examined] = {}
        self._missing: set[BundleId] = set()

    async def change(self, takes: Sequence[BundleId], drops: Sequence[BundleId]) -> LockOutcomes:
        """Take and drop locks as far as possible; return the result of each.

        Raises `SessionLost`: the owned list is gone or another's: so is the session.
        """
        found = LockOutcomes()
        while takes or drops:
            try:
                await self._attempt(takes, drops, found)
            except TooLarge as error:
                found.error = error
                found.note(takes, LockResult.TAKE_TOO_LARGE)
                found.note(drops, LockResult.DROP_TOO_LARGE)
            except Disconnected:
                await self._list.applied()
                found.note((*takes, *drops), LockResult.NOT_APPLIED)
            takes = [bundle for bundle in takes if bundle not in found.results]
            drops = [bundle for bundle in drops if bundle not in found.results]
        return found

    async def replace(self, change: RangeChange) -> int | None:
        """Replace bundles by others of the same range: boundaries, locks and list in one commit.

        Return the fencing token of the new locks, None if nothing was changed. Raises
        `SessionLost`: the owned list is gone or another's: so is the session.
        """
        content = self._lock_content()
        operations: list[Operation] = [
            change.boundaries,
            SetData(znodes.lock_folder(change.whole), b""),
            *(Create(znodes.lock(one), content, ephemeral=True) for one in change.made),
            *(Delete(znodes.lock(one)) for one in change.gone),
        ]
        try:
            stat = await self._list.commit(
                operations, gone=change.gone, made=change.made, served=not change.is_merge
            )
        except CommitRejected as rejected:
            # The order stands, so it is evaluated again later.
            event = "bundle.merge.rejected" if change.is_merge else "bundle.split.rejected"
            log.warning(event, bundles=change.gone, why=str(rejected))
            return None
        except TooLarge as error:
            kind = "merge" if change.is_merge else "split"
            self._oversized.refused(kind, change.gone[0], error)
            return None
        return None if stat is None else stat.mzxid

    async def _attempt(
        self, takes: Sequence[BundleId], drops: Sequence[BundleId], found: LockOutcomes
    ) -> None:
        """Commit once; add the results of all locks, or of those that prevented the commit.

        Raises `TooLarge`: the commit exceeds ZooKeeper's limit; `Disconnected`: nothing was sent.
        """
        versions, strange = await self._boundary_versions(takes)
        if strange:
            found.note(strange, LockResult.NOT_A_BUNDLE)
            return
        if takes and self._orders() is None:
            found.note(takes, LockResult.ORDERS_IN_DOUBT)
            return
        operations = self._operations(takes, drops, versions)
        try:
            written = [operation for _, operation in operations]
            stat = await self._list.commit(written, gone=drops, made=takes)
        except CommitRejected as rejected:
            bundle, operation = operations[rejected.index]
            held = await self._give_way(bundle, operation, rejected, takes, drops)
            found.note(held, LockResult.HELD_BY_ANOTHER)
            return
        if stat is None:
            found.note((*takes, *drops), LockResult.NOT_APPLIED)
            return
        for bundle in takes:
            self._replace.pop(bundle, None)
        self._missing.difference_update(drops)
        found.token = stat.mzxid
        found.note(drops, LockResult.DROPPED)
        found.note(takes, LockResult.TAKEN)

    async def _boundary_versions(
        self, takes: Sequence[BundleId]
    ) -> tuple[Mapping[Namespace, int], Sequence[BundleId]]:
        """Return the versions of the boundaries of ``takes``, and the bundles not in them.

        An order from before a split must not restore the split bundle beside its parts.
        """
        versions: dict[Namespace, int] = {}
        strange: list[BundleId] = []
        for bundle in takes:
            namespace = namespace_of(bundle)
            try:
                boundaries = await self._cluster_state.boundaries(namespace)
            except MalformedContent as error:
                log.warning("znode.content.refused", path=error.where, error=str(error))
                boundaries = None
            if boundaries is None or boundaries.at(range_of(bundle)[0]) != bundle:
                log.info("bundle.lock.refused", bundle=bundle, why="no bundle of its namespace")
                strange.append(bundle)
            else:
                versions[namespace] = boundaries.version
        return versions, strange

    def _operations(
        self,
        takes: Sequence[BundleId],
        drops: Sequence[BundleId],
        versions: Mapping[Namespace, int],
    ) -> list[tuple[BundleId | None, Operation]]:
        lock_content = self._lock_content()
        operations: list[tuple[BundleId | None, Operation]] = [
            (None, Check(znodes.local_policies(namespace), version))
            for namespace, version in versions.items()
        ]
        operations += [
            (bundle, Delete(znodes.lock(bundle))) for bundle in drops if bundle not in self._missing
        ]
        # Checked before they are set: taking a lock changes its folder, see `_examine`.
        operations += [
            (bundle, Check(znodes.lock_folder(bundle), self._replace[bundle].folder_version))
            for bundle in takes
            if bundle in self._replace
        ]
        folders = {znodes.lock_folder(bundle): bundle for bundle in takes}
        operations += [(bundle, SetData(folder, b"")) for folder, bundle in folders.items()]
        for bundle in takes:
            path = znodes.lock(bundle)
            if bundle in self._replace:
                operations.append((bundle, Delete(path, self._replace[bundle].version)))
            operations.append((bundle, Create(path, lock_content, ephemeral=True)))
        return operations

    def _lock_content(self) -> bytes:
        orders = self._orders()
        return self._identity.lock_content(orders.epoch if orders else 0)

    async def _give_way(
        self,
        bundle: BundleId | None,
        operation: Operation,
        rejected: CommitRejected,
        takes: Sequence[BundleId],
        drops: Collection[BundleId],
    ) -> list[BundleId]:
        """Resolve a rejection for the next attempt; return the bundles held by others."""
        if isinstance(operation, Check) and bundle is not None:
            # A lock in that folder was taken since, perhaps the one to be replaced.
            self._replace.clear()
        elif isinstance(operation, Check):
            # The boundaries changed, and the watch has not fired yet.
            for namespace in {namespace_of(take) for take in takes}:
                await self._cluster_state.reread_boundaries(namespace)
        elif bundle is not None and isinstance(operation, Delete):
            self._replace.pop(bundle, None)
            if bundle in drops:
                # Deleted before we dropped it: it is free once it is not in the list.
                log.warning("bundle.lock.missing", bundle=bundle, error=str(rejected.cause))
                self._missing.add(bundle)
        elif bundle is not None and isinstance(rejected.cause, NodeMissing):
            await self._coordination.ensure(znodes.lock_folder(bundle))
        elif isinstance(rejected.cause, NodeExists):
            return await self._examine(takes)
        else:
            raise rejected.cause
        return []

    async def _examine(self, takes: Sequence[BundleId]) -> list[BundleId]:
        """Determine the holders of existing locks; return those of others, and replace our own.

        A lock of this session is from a commit whose reply was lost; a lock of an earlier
        session of this broker is from before a restart. The broker has confirmed the new agent
        epoch and so serves nothing under either.

        That session may end, and another broker take the lock, before ours is replaced:
        a new node, with the same version. So every taking sets the folder as well, and
        a commit that replaces a lock checks that the folder is as it was before the lock was
        read. All are read at once, since any lock of the namespace that is taken meanwhile
        spoils it.
        """
        paths = sorted({znodes.lock_folder(bundle) for bundle in takes})
        read = await asyncio.gather(*(self._coordination.get(path) for path in paths))
        folders = dict(zip(paths, read, strict=True))
        locks = [self._coordination.get(znodes.lock(bundle)) for bundle in takes]
        held: list[BundleId] = []
        for bundle, node in zip(takes, await asyncio.gather(*locks), strict=True):
            folder = folders[znodes.lock_folder(bundle)]
            if node is None or folder is None:
                self._replace.pop(bundle, None)
            elif self._is_ours(bundle, node):
                self._replace[bundle] = _Examined(node.stat.version, folder.stat.version)
            else:
                held_by = node.stat.ephemeral_owner
                log.info("bundle.lock.refused", bundle=bundle, held_by_session=held_by)
                held.append(bundle)
        return held

    def _is_ours(self, bundle: BundleId, node: Node) -> bool:
        if node.stat.ephemeral_owner == self._session_id:
            return True
        try:
            holder = decode_lock(znodes.lock(bundle), node.data).broker
        except MalformedContent as error:
            log.warning("znode.content.refused", path=error.where, error=str(error))
            return False
        if holder is not None and holder != self._identity.broker:
            # It is taken as soon as that broker's list, watched from now on, no longer contains it.
            self._cluster_state.lists.read_list(holder)
        return holder == self._identity.broker
