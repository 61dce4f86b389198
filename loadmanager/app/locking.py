"""Taking and dropping ownership locks: batches of creates and deletes, each with the list.

Each commit sets this broker's owned list under a check of the list's version. The list
is an ephemeral of the same session and this worker its only writer, so a commit of a
former session, or one applied twice, is refused whole; and after a lost reply the
list's version tells whether the commit was applied.
"""

from collections.abc import Sequence

import structlog

from loadmanager.app.owning import Membership, Ownerships
from loadmanager.app.parts import Parts
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId
from loadmanager.core.orders import encode_owned
from loadmanager.core.ownership import Phase
from loadmanager.core.wire import decode_lock
from loadmanager.ports import (
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
)

log = structlog.get_logger()

_BATCH = 64
_IDLE_S = 5.0
_RECONNECT_POLL_S = 0.1


class LockKeeper:
    """The one writer of this broker's locks and owned list, for one membership."""

    def __init__(self, parts: Parts, ownerships: Ownerships, membership: Membership) -> None:
        self._coordination = parts.coordination
        self._ownerships = ownerships
        self._clock = parts.clock
        self._membership = membership
        self._identity = parts.identity
        self._list_path = znodes.owned(membership.broker)
        self._list_version = 0
        self._replace: dict[BundleId, int] = {}

    async def run(self) -> None:
        """Take and drop what is asked for, until cancelled.

        Raises:
            SessionLost: the owned list is gone or somebody else's: so is the session.
        """
        while True:
            takes, drops = self._next_batch()
            if not takes and not drops:
                await self._ownerships.lock_work.wait(_IDLE_S)
                continue
            try:
                await self._commit(takes, drops)
            except Disconnected:
                await self._settle(takes, drops)

    def _next_batch(self) -> tuple[list[BundleId], list[BundleId]]:
        takes = list(self._ownerships.takes)[:_BATCH]
        for bundle in takes:
            if self._ownerships.phases.get(bundle) is Phase.ABANDONING:
                self._ownerships.lock_refused(bundle)
        takes = [bundle for bundle in takes if bundle in self._ownerships.takes]
        return takes, list(self._ownerships.drops)[:_BATCH]

    async def _commit(self, takes: list[BundleId], drops: list[BundleId]) -> None:
        """Commit the batch without what turns out to be impossible.

        Raises:
            Disconnected: the reply was lost; the commit may have been applied.
        """
        while takes or drops:
            operations = self._operations(takes, drops)
            try:
                stats = await self._coordination.commit([operation for _, operation in operations])
            except CommitRejected as rejected:
                bundle, operation = operations[rejected.index]
                await self._give_way(bundle, operation, rejected, takes, drops)
                continue
            written = stats[-1]
            assert written is not None  # noqa: S101 - the port: a SetData has a stat
            self._done(takes, drops, written.version, written.mzxid)
            return

    def _operations(
        self, takes: Sequence[BundleId], drops: Sequence[BundleId]
    ) -> list[tuple[BundleId | None, Operation]]:
        after: dict[BundleId, int | None] = dict(self._ownerships.tokens)
        orders = self._ownerships.orders
        lock_content = self._identity.lock_content(orders.epoch if orders else 0)
        operations: list[tuple[BundleId | None, Operation]] = []
        for bundle in drops:
            after.pop(bundle, None)
            operations.append((bundle, Delete(znodes.lock(bundle))))
        for bundle in takes:
            after[bundle] = None
            path = znodes.lock(bundle)
            if bundle in self._replace:
                operations.append((bundle, Delete(path, self._replace[bundle])))
            operations.append((bundle, Create(path, lock_content, ephemeral=True)))
        content = encode_owned(after)
        operations.append((None, SetData(self._list_path, content, self._list_version)))
        return operations

    async def _give_way(
        self,
        bundle: BundleId | None,
        operation: Operation,
        rejected: CommitRejected,
        takes: list[BundleId],
        drops: list[BundleId],
    ) -> None:
        if bundle is None:
            raise SessionLost(f"{self._list_path}: {rejected.cause}") from rejected
        if isinstance(operation, Delete):
            self._replace.pop(bundle, None)
            if bundle in drops:
                # Gone before we dropped it: it is free all the same.
                log.warning("bundle.lock.missing", bundle=bundle, error=str(rejected.cause))
                drops.remove(bundle)
                self._ownerships.locks_dropped([bundle])
        elif isinstance(rejected.cause, NodeMissing):
            await self._coordination.ensure(znodes.lock(bundle).rpartition("/")[0])
        elif isinstance(rejected.cause, NodeExists):
            await self._examine(bundle, takes)
        else:
            raise rejected.cause

    async def _examine(self, bundle: BundleId, takes: list[BundleId]) -> None:
        """Find out whose lock is in the way, and replace it if it is our own.

        A lock of this session is one whose commit lost its reply; one of an earlier
        session of this same broker is from before a restart. The broker has confirmed
        the new agent epoch and so serves nothing under either.
        """
        node = await self._coordination.get(znodes.lock(bundle))
        if node is None:
            return
        if self._is_ours(bundle, node):
            self._replace[bundle] = node.stat.version
            return
        log.info("bundle.lock.refused", bundle=bundle, held_by_session=node.stat.ephemeral_owner)
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

    async def _settle(self, takes: Sequence[BundleId], drops: Sequence[BundleId]) -> None:
        """Find out, after a lost reply, whether the commit was applied."""
        while True:
            try:
                node = await self._coordination.get(self._list_path)
            except Disconnected:
                await self._clock.sleep(_RECONNECT_POLL_S)
                continue
            if node is None or node.stat.ephemeral_owner != self._membership.session_id:
                raise SessionLost(f"{self._list_path}: not of this session any more")
            if node.stat.version > self._list_version:
                self._done(takes, drops, node.stat.version, node.stat.mzxid)
            return

    def _done(
        self, takes: Sequence[BundleId], drops: Sequence[BundleId], version: int, mzxid: int
    ) -> None:
        self._list_version = version
        for bundle in takes:
            self._replace.pop(bundle, None)
        self._ownerships.locks_dropped(drops)
        self._ownerships.locks_taken(dict.fromkeys(takes, mzxid))
