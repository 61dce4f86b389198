"""Taking and dropping ownership locks: batches of creates and deletes, each with the list.

Each commit sets this broker's owned list under a check of the list's version. The list
is an ephemeral of the same session and this worker its only writer, so a commit applied
twice is refused whole, and after a lost reply the list's version tells whether it was
applied. Each commit also checks the mark of this very agent, which another agent of the
same broker deletes as it registers: what a former one still sends is refused.
"""

import asyncio
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import structlog

from loadmanager.app.joints import Joint
from loadmanager.app.lock_batches import LockBatches
from loadmanager.app.membership import Membership
from loadmanager.app.oversized import REST_S
from loadmanager.app.owning import Cut, Ownerships
from loadmanager.app.parts import Parts
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId, Namespace, namespace_of, range_of
from loadmanager.core.orders import encode_owned
from loadmanager.core.ownership import Phase
from loadmanager.core.splitting import merges_in
from loadmanager.core.wire import decode_lock
from loadmanager.ports import (
    Check,
    CommitRejected,
    Create,
    Delete,
    Disconnected,
    Node,
    NodeExists,
    NodeMissing,
    Operation,
    SessionLost,
    SetData,
    Stat,
    TooLarge,
)

log = structlog.get_logger()

_LIST_FRACTION: Final = 0.9
"""How much of what ZooKeeper takes at once the list may need: a bundle can still be dropped
then, and the tokens of new locks be written out."""
_SMALL_LIST_BYTES: Final = 20_000
_REWRITTEN_BYTES_PER_S: Final = 1_000_000
"""How fast a list that is not small may be rewritten, and read by all sidecars, for changes of
a few locks each: 20,000 bundles wait 0.2 s for one another."""
_IDLE_S = 5.0
_GATHER_S = 0.01
_RECONNECT_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class _Examined:
    """A lock of ours that is to be replaced, as it was read, and its folder before that."""

    version: int
    folder_version: int


class LockKeeper:
    """The one writer of this broker's locks and owned list, for one membership."""

    def __init__(self, parts: Parts, ownerships: Ownerships, membership: Membership) -> None:
        self._oversized = parts.oversized
        self._coordination = parts.coordination
        self._picture = parts.picture
        self._ownerships = ownerships
        self._clock = parts.clock
        self._membership = membership
        self._identity = parts.identity
        self._list_path = znodes.owned(membership.broker)
        # Another agent of this broker that registers deletes our mark: what this one still
        # had on its way then, frozen perhaps, must not touch the locks of that one.
        self._still_ours = Check(znodes.agent(membership.broker, membership.session_id), 0)
        self._list_version = 0
        self._list_bytes = 0
        # Which of its bundles the list says are not served yet, as written and as last sent.
        self._listed_loading: AbstractSet[BundleId] = frozenset()
        self._sent_loading: AbstractSet[BundleId] = frozenset()
        self._replace: dict[BundleId, _Examined] = {}
        self._missing: set[BundleId] = set()
        self._batches = LockBatches(ownerships, parts.clock, parts.oversized)

    async def run(self) -> None:
        """Take and drop what is asked for, until cancelled.

        Raises:
            SessionLost: the owned list is gone or somebody else's: so is the session.
        """
        while True:
            takes, drops = self._batches.next()
            joint, cut = self._ready_joint(), next(iter(self._ownerships.cuts.values()), None)
            if self._ownerships.doubting:
                joint, cut = None, None
            if joint is not None:
                await self._join(joint)
            elif takes or drops:
                if self._list_bytes > _SMALL_LIST_BYTES and not self._batches.full(takes, drops):
                    await self._clock.sleep(self._list_bytes / _REWRITTEN_BYTES_PER_S)
                    takes, drops = self._batches.next()
                await self._change_some(takes, drops)
            elif cut is not None:
                await self._cut(cut)
            elif self._ownerships.serving.loading != self._listed_loading:
                await self._list()
            else:
                await self._ownerships.lock_work.wait(_IDLE_S)

    async def _change_some(self, takes: list[BundleId], drops: list[BundleId]) -> None:
        try:
            await self._change(takes, drops)
        except TooLarge as error:
            self._batches.too_large(takes, drops, error)
        else:
            self._batches.done(takes, drops)

    def _ready_joint(self) -> Joint | None:
        orders, own = self._ownerships.orders, self._ownerships
        ordered = merges_in(orders.splits) if orders else ()
        return own.joints.ready(own.phases, ordered, self._clock.monotonic_s())

    async def _change(self, takes: list[BundleId], drops: list[BundleId]) -> None:
        """Take and drop a batch of locks, and find out after a lost reply whether it was done."""
        try:
            written = await self._commit(takes, drops)
        except Disconnected:
            written = await self._outcome()
        if written is None:
            return
        self._written(written)
        for bundle in takes:
            self._replace.pop(bundle, None)
        self._missing.difference_update(drops)
        self._ownerships.locks_dropped(drops)
        self._ownerships.locks_taken(dict.fromkeys(takes, written.mzxid))

    async def _commit(self, takes: list[BundleId], drops: list[BundleId]) -> Stat | None:
        """Commit the batch without what turns out to be impossible, and return the list's stat.

        Raises:
            Disconnected: the reply was lost; the commit may have been applied.
        """
        only_list = not takes and not drops
        while takes or drops or only_list:
            versions = await self._boundary_versions(takes)
            if self._ownerships.doubting:
                takes.clear()
                versions.clear()
            if not takes and not drops and not only_list:
                # To set the list to what it is would tell everybody of a change, us as well.
                break
            operations = self._operations(takes, drops, versions)
            try:
                stats = await self._coordination.commit([operation for _, operation in operations])
            except CommitRejected as rejected:
                bundle, operation = operations[rejected.index]
                await self._give_way(bundle, operation, rejected, takes, drops)
                continue
            return stats[-1]
        return None

    async def _boundary_versions(self, takes: list[BundleId]) -> dict[Namespace, int]:
        """Return the versions of the boundaries that ``takes`` are bundles of.

        A bundle that its namespace does not have (any more) is taken out and refused: an
        order from before a split must not bring the whole back beside its parts.
        """
        versions: dict[Namespace, int] = {}
        for bundle in list(takes):
            namespace = namespace_of(bundle)
            try:
                boundaries = await self._picture.boundaries(namespace)
            except MalformedContent as error:
                log.warning("znode.content.refused", path=error.where, error=str(error))
                boundaries = None
            if boundaries is None or boundaries.at(range_of(bundle)[0]) != bundle:
                log.info("bundle.lock.refused", bundle=bundle, why="no bundle of its namespace")
                takes.remove(bundle)
                self._ownerships.lock_refused(bundle)
            else:
                versions[namespace] = boundaries.version
        return versions

    def _operations(
        self,
        takes: Sequence[BundleId],
        drops: Sequence[BundleId],
        versions: Mapping[Namespace, int],
    ) -> list[tuple[BundleId | None, Operation]]:
        after: dict[BundleId, int | None] = dict(self._ownerships.tokens)
        orders = self._ownerships.orders
        lock_content = self._identity.lock_content(orders.epoch if orders else 0)
        operations: list[tuple[BundleId | None, Operation]] = [(None, self._still_ours)]
        operations += [
            (None, Check(znodes.local_policies(namespace), version))
            for namespace, version in versions.items()
        ]
        for bundle in drops:
            after.pop(bundle, None)
            if bundle not in self._missing:
                operations.append((bundle, Delete(znodes.lock(bundle))))
        # Checked before they are set: every taking changes its folder, see `_examine`.
        operations += [
            (bundle, Check(znodes.lock_folder(bundle), self._replace[bundle].folder_version))
            for bundle in takes
            if bundle in self._replace
        ]
        folders = {znodes.lock_folder(bundle): bundle for bundle in takes}
        operations += [(bundle, SetData(folder, b"")) for folder, bundle in folders.items()]
        for bundle in takes:
            after[bundle] = None
            path = znodes.lock(bundle)
            if bundle in self._replace:
                operations.append((bundle, Delete(path, self._replace[bundle].version)))
            operations.append((bundle, Create(path, lock_content, ephemeral=True)))
        operations.append((None, self._own_list(after, takes)))
        return operations

    def _own_list(
        self, after: Mapping[BundleId, int | None], takes: Sequence[BundleId] = ()
    ) -> SetData:
        self._sent_loading = (self._ownerships.serving.loading | set(takes)) & after.keys()
        content = encode_owned(after, self._sent_loading)
        self._list_bytes = len(content)
        limit_bytes = int(_LIST_FRACTION * self._coordination.max_request_bytes)
        if takes and len(content) > limit_bytes:
            raise TooLarge(self._list_path, len(content), limit_bytes)
        return SetData(self._list_path, content, self._list_version)

    def _written(self, own_list: Stat) -> None:
        self._list_version = own_list.version
        self._listed_loading = self._sent_loading

    async def _list(self) -> None:
        """Tell lookups what the broker serves by now: the one write that nobody waits for.

        Whatever changes locks says it too; alone it goes only when there is nothing else.
        """
        loading = self._ownerships.serving.loading
        if loading and await self._ownerships.lock_work.wait(_GATHER_S):
            return  # More is served by now, or a lock has to be dropped or taken: that first.
        try:
            await self._change([], [])
        except TooLarge as error:
            self._oversized.refused("locks", self._list_path, error)
            await self._ownerships.lock_work.wait(REST_S)

    async def _give_way(
        self,
        bundle: BundleId | None,
        operation: Operation,
        rejected: CommitRejected,
        takes: list[BundleId],
        drops: list[BundleId],
    ) -> None:
        if operation is self._still_ours:
            raise SessionLost(f"{self._still_ours.path}: {rejected.cause}") from rejected
        if isinstance(operation, Check) and bundle is not None:
            # A lock was taken there since, perhaps the one that was to be replaced.
            self._replace.clear()
            return
        if isinstance(operation, Check):
            # The boundaries moved, and the watch has not told yet.
            for namespace in {namespace_of(take) for take in takes}:
                await self._picture.reread_boundaries(namespace)
            return
        if bundle is None:
            raise SessionLost(f"{self._list_path}: {rejected.cause}") from rejected
        if isinstance(operation, Delete):
            self._replace.pop(bundle, None)
            if bundle in drops:
                # Gone before we dropped it: it is free once the list does not name it.
                log.warning("bundle.lock.missing", bundle=bundle, error=str(rejected.cause))
                self._missing.add(bundle)
        elif isinstance(rejected.cause, NodeMissing):
            await self._coordination.ensure(znodes.lock_folder(bundle))
        elif isinstance(rejected.cause, NodeExists):
            await self._examine(takes)
        else:
            raise rejected.cause

    async def _examine(self, takes: list[BundleId]) -> None:
        """Find out whose locks are in the way, and replace those that are our own.

        A lock of this session is one whose commit lost its reply; one of an earlier
        session of this same broker is from before a restart. The broker has confirmed
        the new agent epoch and so serves nothing under either.

        That session may end, and another broker take the lock, before ours is replaced:
        a new node, with the same version. So every taking sets the folder as well, and
        whoever replaces a lock checks that the folder is as it was before the lock was read.
        All are read at once, since any lock of the namespace that is taken meanwhile spoils it.
        """
        paths = sorted({znodes.lock_folder(bundle) for bundle in takes})
        read = await asyncio.gather(*(self._coordination.get(path) for path in paths))
        folders = dict(zip(paths, read, strict=True))
        bundles = tuple(takes)
        locks = [self._coordination.get(znodes.lock(bundle)) for bundle in bundles]
        for bundle, node in zip(bundles, await asyncio.gather(*locks), strict=True):
            folder = folders[znodes.lock_folder(bundle)]
            if node is None or folder is None:
                self._replace.pop(bundle, None)
            elif self._is_ours(bundle, node):
                self._replace[bundle] = _Examined(node.stat.version, folder.stat.version)
            else:
                held_by = node.stat.ephemeral_owner
                log.info("bundle.lock.refused", bundle=bundle, held_by_session=held_by)
                takes.remove(bundle)
                self._ownerships.lock_refused(bundle)

    def _is_ours(self, bundle: BundleId, node: Node) -> bool:
        if node.stat.ephemeral_owner == self._membership.session_id:
            return True
        try:
            return decode_lock(znodes.lock(bundle), node.data).broker == self._identity.broker
        except MalformedContent as error:
            log.warning("znode.content.refused", path=error.where, error=str(error))
            return False

    async def _cut(self, cut: Cut) -> None:
        """Replace a bundle by its parts: boundaries, locks and list in one commit."""
        del self._ownerships.cuts[cut.whole]
        if self._ownerships.phases.get(cut.whole) is not Phase.OWNED:
            return
        written = await self._redraw((cut.whole,), cut.parts, cut.boundaries)
        if written is not None:
            self._ownerships.was_cut(cut, written.mzxid)

    async def _join(self, joint: Joint) -> None:
        """Replace two bundles that have stopped by one: boundaries, locks and list at once."""
        both = joint.both
        self._ownerships.joining(joint)
        written = await self._redraw(both.halves, (both.whole,), joint.boundaries, (both.whole,))
        if written is not None:
            self._ownerships.was_joined(joint, written.mzxid)
        else:
            self._ownerships.not_joined(joint)

    async def _redraw(
        self,
        gone: Sequence[BundleId],
        made: Sequence[BundleId],
        boundaries: SetData,
        loading: Sequence[BundleId] = (),
    ) -> Stat | None:
        """Replace bundles by others of the same range; None if nothing was changed.

        Raises:
            SessionLost: the owned list is gone or somebody else's: so is the session.
        """
        kind = "split" if len(gone) == 1 else "merge"
        orders = self._ownerships.orders
        lock_content = self._identity.lock_content(orders.epoch if orders else 0)
        tokens = self._ownerships.tokens.items()
        after: dict[BundleId, int | None] = {b: token for b, token in tokens if b not in gone}
        after |= dict.fromkeys(made)
        own_list = self._own_list(after, loading)
        operations: list[Operation] = [
            self._still_ours,
            boundaries,
            SetData(znodes.lock_folder(gone[0]), b""),
            *(Create(znodes.lock(one), lock_content, ephemeral=True) for one in made),
            *(Delete(znodes.lock(one)) for one in gone),
            own_list,
        ]
        try:
            stats = await self._coordination.commit(operations)
        except CommitRejected as rejected:
            if operations[rejected.index] in {self._still_ours, own_list}:
                raise SessionLost(f"{self._list_path}: {rejected.cause}") from rejected
            # The order stands, so it is looked at again as things are by then.
            event = "bundle.split.rejected" if kind == "split" else "bundle.merge.rejected"
            log.warning(event, bundles=gone, why=str(rejected))
            return None
        except TooLarge as error:
            self._oversized.refused(kind, gone[0], error)
            return None
        except Disconnected:
            written = await self._outcome()
        else:
            written = stats[-1]
        if written is not None:
            self._written(written)
        return written

    async def _outcome(self) -> Stat | None:
        """Return the list's stat if the commit whose reply was lost was applied, else None."""
        while True:
            try:
                # No sync: a leader of the ensemble that lost the others may not know of it.
                await self._coordination.heartbeat()
                node = await self._coordination.get(self._list_path)
            except Disconnected:
                await self._clock.sleep(_RECONNECT_POLL_S)
                continue
            if node is None or node.stat.ephemeral_owner != self._membership.session_id:
                raise SessionLost(f"{self._list_path}: not of this session any more")
            return node.stat if node.stat.version > self._list_version else None
