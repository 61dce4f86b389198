"""Takes and drops locks in batches, each in one commit with the owned list of the broker.

The list is an ephemeral node of the same session with a single writer, set under a check of its
version: a repeated commit is refused as a whole, and after a lost reply the version shows whether
it was applied. Each commit also checks the mark of this agent, which another agent of the same
broker deletes when it registers: writes of a former agent are refused.

Each commit rewrites the list, so larger batches reduce that cost. They grow while there is enough
work, and shrink if a commit exceeds ZooKeeper's limit. A lock that does not fit even alone is
refused: its bundle must go to another broker.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final

import structlog

from loadmanager.agent.ownership import Ownership, OwnershipRecords, OwnershipWorker, RangeChange
from loadmanager.agent.registration import Membership
from loadmanager.common.context import REST_S, Context
from loadmanager.common.watching import readable
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId, Namespace, namespace_of, range_of
from loadmanager.core.orders import Orders, encode_owned
from loadmanager.core.ownership import Phase
from loadmanager.core.splitting.merging import merges_in
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
    SessionLost,
    SetData,
    Stat,
    TooLarge,
)

log = structlog.get_logger()

_LIST_FRACTION: Final = 0.9
"""How much of what ZooKeeper takes at once the list may need: a bundle can still be dropped
then, and the tokens of new locks be written out."""
_REWRITTEN_BYTES_PER_S: Final = 250_000
"""How fast the list may be rewritten, and read by all sidecars, for a few changes each time."""
_REWRITTEN_AHEAD_S: Final = 2.0
"""For how long at that rate it may be rewritten at once: with 20,000 bundles (0.3 MB) two or
three changes do not wait, and further ones do for a second, together."""
_RECONNECT_POLL_S: Final = 0.1


class OwnedList:
    """The only writer of the list; ``loading`` are the listed bundles not served yet."""

    def __init__(self, context: Context, records: OwnershipRecords, membership: Membership) -> None:
        self._coordination = context.coordination
        self._clock = context.clock
        self._records = records
        self._session_id = membership.session_id
        # Another agent of this broker deletes our mark when it registers: pending writes of this
        # agent, which may have been frozen, must not affect the locks of that agent.
        self._still_ours = Check(znodes.agent(membership.broker, membership.session_id), 0)
        self._version = 0
        self.path = znodes.owned(membership.broker)
        # When all that was written would have been, at the rate at which lists may be rewritten.
        self._paced_until_s = -math.inf
        self.loading: AbstractSet[BundleId] = frozenset()

    async def commit(
        self,
        operations: Sequence[Operation] = (),
        *,
        gone: Collection[BundleId] = (),
        made: Sequence[BundleId] = (),
        served: bool = False,
    ) -> Stat | None:
        """Commit ``operations`` with the list without ``gone`` and with ``made``.

        The latter are still to be loaded, unless ``served``. Return the list's stat, None if the
        reply was lost and the commit was not applied. Raises `CommitRejected` with an index in
        ``operations``, `TooLarge`, and `SessionLost`: the mark or the list is another agent's now.
        """
        after: dict[BundleId, int | None] = {**self._records.tokens, **dict.fromkeys(made)}
        for bundle in gone:
            after.pop(bundle, None)
        loading = (self._records.loading.keys() | (() if served else set(made))) & after.keys()
        content = encode_owned(after, loading)
        limit_bytes = int(_LIST_FRACTION * self._coordination.max_request_bytes)
        if made and not served and len(content) > limit_bytes:
            raise TooLarge(self.path, len(content), limit_bytes)
        own_list = SetData(self.path, content, self._version)
        every = [self._still_ours, *operations, own_list]
        try:
            stat: Stat | None = (await self._coordination.commit(every))[-1]
        except CommitRejected as rejected:
            if every[rejected.index] in {self._still_ours, own_list}:
                raise SessionLost(f"{every[rejected.index].path}: {rejected.cause}") from rejected
            raise CommitRejected(rejected.index - 1, rejected.cause) from rejected
        except Disconnected:
            stat = await self.applied()
        if stat is not None:
            self._version, self.loading = stat.version, loading
            now_s = self._clock.monotonic_s()
            begin_s = min(max(self._paced_until_s, now_s), now_s + _REWRITTEN_AHEAD_S)
            self._paced_until_s = begin_s + len(content) / _REWRITTEN_BYTES_PER_S
        return stat

    def pause_s(self) -> float:
        return max(0.0, self._paced_until_s - _REWRITTEN_AHEAD_S - self._clock.monotonic_s())

    async def applied(self) -> Stat | None:
        """Wait until ZooKeeper answers; return the list's stat if it was written since."""
        while True:
            try:
                # No sync: a leader of the ensemble that lost the others may not have it.
                await self._coordination.heartbeat()
                node = await self._coordination.get(self.path)
            except Disconnected:
                await self._clock.sleep(_RECONNECT_POLL_S)
                continue
            if node is None or node.stat.ephemeral_owner != self._session_id:
                raise SessionLost(f"{self.path}: not of this session any more")
            return node.stat if node.stat.version > self._version else None


_BATCH: Final = 64
_LARGEST_BATCH: Final = 512


@dataclass(frozen=True, slots=True)
class LockBatch:
    """``refused`` are not to be taken now."""

    takes: Sequence[BundleId]
    drops: Sequence[BundleId]
    refused: Sequence[BundleId]


class LockBatches:
    def __init__(self) -> None:
        self._size = _BATCH
        self._drops_first = False
        # Takes that did not fit, tried after all others.
        self._unfit: dict[BundleId, None] = {}
        self._takes_rest_until_s = self._drops_rest_until_s = -math.inf

    def next(
        self,
        takes: Mapping[BundleId, Ownership],
        drops: Iterable[BundleId],
        now_s: float,
        *,
        may_take: bool,
    ) -> LockBatch:
        if now_s < self._takes_rest_until_s:
            some, refused = [], list(takes)
        else:
            fit = islice((one for one in takes if one not in self._unfit), self._size)
            some = list(fit) or [one for one in self._unfit if one in takes][: self._size]
            refused = [one for one in some if takes[one].phase is Phase.ABANDONING]
        resting = now_s < self._drops_rest_until_s
        dropped = [] if resting else list(islice(drops, self._size))
        postponed = not may_take or (dropped and self._drops_first)
        taken = [] if postponed else [one for one in some if one not in refused]
        return LockBatch(taken, dropped, refused)

    def done(self, taken: Collection[BundleId], dropped: Collection[BundleId]) -> None:
        for bundle in taken:
            self._unfit.pop(bundle, None)
        if dropped:
            self._unfit.clear()
            self._takes_rest_until_s = -math.inf
        if self.is_full(taken, dropped):
            self._size = min(2 * self._size, _LARGEST_BATCH)
        self._drops_first = False

    def too_large(
        self, takes: Sequence[BundleId], drops: Sequence[BundleId], now_s: float
    ) -> BundleId | None:
        """Shrink the batches; return a bundle whose lock does not fit alone: that kind rests."""
        count = len(takes) + len(drops)
        if takes and drops:
            self._drops_first = True  # They make the list smaller.
        elif count > 1:
            self._size = max(1, count // 2)
        elif drops:
            self._drops_rest_until_s = now_s + REST_S
            return drops[0]
        else:
            self._unfit.pop(takes[0], None)
            self._unfit[takes[0]] = None
            self._takes_rest_until_s = now_s + REST_S
            return takes[0]
        return None

    def is_full(self, takes: Collection[BundleId], drops: Collection[BundleId]) -> bool:
        return max(len(takes), len(drops)) >= self._size


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
    """Results of locks; ``token`` is that of the taken ones, ``error`` why some did not fit."""

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
    """The only writer of this broker's locks; ``orders`` returns None while they are in doubt."""

    def __init__(
        self,
        context: Context,
        owned_list: OwnedList,
        orders: Callable[[], Orders | None],
        membership: Membership,
    ) -> None:
        self._context = context
        self._list = owned_list
        self._orders = orders
        self._session_id = membership.session_id
        self._replace: dict[BundleId, _Examined] = {}
        self._missing: set[BundleId] = set()

    async def change(self, takes: Sequence[BundleId], drops: Sequence[BundleId]) -> LockOutcomes:
        """Take and drop locks as far as possible. Raises `SessionLost`."""
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

        Return the token of the new locks, None if nothing was changed. Raises `SessionLost`.
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
            self._context.oversized.refused(kind, change.gone[0], error)
            return None
        return None if stat is None else stat.mzxid

    async def _attempt(
        self, takes: Sequence[BundleId], drops: Sequence[BundleId], found: LockOutcomes
    ) -> None:
        """Commit once; add the results of all locks, or of those that prevented the commit."""
        versions, unknown = await self._boundary_versions(takes)
        if unknown:
            found.note(unknown, LockResult.NOT_A_BUNDLE)
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
            held = await self._resolve_rejection(bundle, operation, rejected, takes, drops)
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
        """Return the boundaries' versions, and the bundles not in them, such as a split one."""
        versions: dict[Namespace, int] = {}
        unknown: list[BundleId] = []
        for bundle in takes:
            namespace = namespace_of(bundle)
            try:
                boundaries = await self._context.cluster_state.boundaries(namespace)
            except MalformedContent as error:
                log.warning("znode.content.refused", path=error.where, error=str(error))
                boundaries = None
            if boundaries is None or boundaries.at(range_of(bundle)[0]) != bundle:
                log.info("bundle.lock.refused", bundle=bundle, why="no bundle of its namespace")
                unknown.append(bundle)
            else:
                versions[namespace] = boundaries.version
        return versions, unknown

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
        return self._context.identity.lock_content(orders.epoch if orders else 0)

    async def _resolve_rejection(
        self,
        bundle: BundleId | None,
        operation: Operation,
        rejected: CommitRejected,
        takes: Sequence[BundleId],
        drops: Collection[BundleId],
    ) -> list[BundleId]:
        if isinstance(operation, Check) and bundle is not None:
            # A lock in that folder was taken since, perhaps the one to be replaced.
            self._replace.clear()
        elif isinstance(operation, Check):
            # The boundaries changed, and the watch has not fired yet.
            for namespace in {namespace_of(take) for take in takes}:
                await self._context.cluster_state.reread_boundaries(namespace)
        elif bundle is not None and isinstance(operation, Delete):
            self._replace.pop(bundle, None)
            if bundle in drops:
                # Deleted before we dropped it: it is free once it is not in the list.
                log.warning("bundle.lock.missing", bundle=bundle, error=str(rejected.cause))
                self._missing.add(bundle)
        elif bundle is not None and isinstance(rejected.cause, NodeMissing):
            await self._context.coordination.ensure(znodes.lock_folder(bundle))
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
        read = await asyncio.gather(*(self._context.coordination.get(path) for path in paths))
        folders = dict(zip(paths, read, strict=True))
        locks = [self._context.coordination.get(znodes.lock(bundle)) for bundle in takes]
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
        holder = None
        with readable(path := znodes.lock(bundle)):
            holder = decode_lock(path, node.data).broker
        if holder is not None and holder != self._context.identity.broker:
            # It is taken as soon as that broker's list, watched from now on, no longer contains it.
            self._context.cluster_state.lists.read_list(holder)
        return holder == self._context.identity.broker


_IDLE_S: Final = 5.0
_GATHER_S: Final = 0.01


class LockWorker:
    def __init__(
        self, context: Context, ownerships: OwnershipWorker, membership: Membership
    ) -> None:
        self._clock = context.clock
        self._oversized = context.oversized
        self._ownerships = ownerships
        self._list = OwnedList(context, ownerships.records, membership)
        self._commits = LockCommits(context, self._list, self._orders, membership)
        self._batches = LockBatches()

    async def run(self) -> None:
        """Raises `SessionLost`: the owned list is gone or another's: so is the session."""
        own = self._ownerships
        while True:
            batch = self._next_batch()
            merge, split = self._ready_merge(), next(iter(own.range_changes.splits.values()), None)
            if merge is not None and not own.doubting:
                await self._merge(merge)
            elif batch.takes or batch.drops:
                pause_s = self._list.pause_s()
                if pause_s > 0 and not self._batches.is_full(batch.takes, batch.drops):
                    await self._clock.sleep(pause_s)
                    batch = self._next_batch()
                self._apply(await self._commits.change(batch.takes, batch.drops))
            elif split is not None and not own.doubting:
                await self._split(split)
            elif own.records.loading.keys() != self._list.loading:
                await self._write_list()
            else:
                await own.lock_work.wait(_IDLE_S)

    def _orders(self) -> Orders | None:
        return None if self._ownerships.doubting else self._ownerships.orders

    def _next_batch(self) -> LockBatch:
        own = self._ownerships
        kept = own.range_changes.stopping()
        batch = self._batches.next(
            own.takes,
            (bundle for bundle in own.drops if bundle not in kept),
            self._clock.monotonic_s(),
            may_take=not own.doubting,
        )
        for bundle in batch.refused:
            own.lock_refused(bundle)
        return batch

    def _ready_merge(self) -> RangeChange | None:
        own = self._ownerships
        ordered = merges_in(own.orders.splits) if own.orders else ()
        return own.range_changes.ready_merge(own.records.phase, ordered, self._clock.monotonic_s())

    def _apply(self, found: LockOutcomes) -> None:
        own = self._ownerships
        for bundle in found.of(LockResult.HELD_BY_ANOTHER, LockResult.NOT_A_BUNDLE):
            own.lock_refused(bundle)
        if found.error is not None:
            takes, drops = LockResult.TAKE_TOO_LARGE, LockResult.DROP_TOO_LARGE
            self._too_large(found.of(takes), found.of(drops), found.error)
            return
        taken, dropped = found.of(LockResult.TAKEN), found.of(LockResult.DROPPED)
        own.locks_dropped(dropped)
        own.locks_taken(dict.fromkeys(taken, found.token))
        self._batches.done(taken, dropped)

    def _too_large(
        self, takes: Sequence[BundleId], drops: Sequence[BundleId], error: TooLarge
    ) -> None:
        alone = self._batches.too_large(takes, drops, self._clock.monotonic_s())
        if alone is not None:
            self._oversized.refused("locks", alone, error)
            if alone in takes:
                self._ownerships.lock_refused(alone)

    async def _write_list(self) -> None:
        """Publish the served bundles to lookups, if no commit of locks includes them anyway."""
        own = self._ownerships
        gather_s = _GATHER_S if own.records.loading else 0.0
        await self._clock.sleep(max(self._list.pause_s(), gather_s))
        batch = self._next_batch()
        if batch.takes or batch.drops:
            return  # Their commit includes it.
        try:
            await self._list.commit()
        except TooLarge as error:
            self._oversized.refused("locks", self._list.path, error)
            await own.lock_work.wait(REST_S)

    async def _split(self, change: RangeChange) -> None:
        own = self._ownerships
        own.range_changes.end(change)
        if own.records.phase(change.whole) is Phase.OWNED:
            token = await self._commits.replace(change)
            if token is not None:
                own.was_split(change, token)

    async def _merge(self, change: RangeChange) -> None:
        own = self._ownerships
        own.merging(change)
        token = await self._commits.replace(change)
        if token is not None:
            own.was_merged(change, token)
        else:
            own.not_merged(change)
