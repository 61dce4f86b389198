"""The owned list of this broker, written with every change of its locks.

Each commit sets the list under a check of its version. The list is an ephemeral node of the same
session with a single writer, so a repeated commit is refused as a whole, and after a lost reply
the list's version shows whether the commit was applied. Each commit also checks the mark of this
agent, which another agent of the same broker deletes when it registers: writes of a former agent
are refused.
"""

import math
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from loadmanager.agent.ownership_records import OwnershipRecords
from loadmanager.agent.registration import Membership
from loadmanager.common.context import Context
from loadmanager.core import znodes
from loadmanager.core.ids import BundleId
from loadmanager.core.orders import encode_owned
from loadmanager.ports.coordination import (
    Check,
    CommitRejected,
    Disconnected,
    Operation,
    SessionLost,
    SetData,
    Stat,
    TooLarge,
)

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
    """The only writer of the list, during one membership.

    ``loading`` are the listed bundles that are not served yet.
    """

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

        The latter are still to be loaded, unless they are ``served`` already. Return the
        list's stat, None if the reply was lost and the commit was not applied.

        Raises:
            CommitRejected: one of ``operations`` failed; its index is among these.
            TooLarge: the commit exceeds ZooKeeper's limit.
            SessionLost: the mark or the list no longer belongs to this agent.
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
            self._pace(len(content))
        return stat

    def pause_s(self) -> float:
        """Return how long a change of a few locks should wait for further changes."""
        return max(0.0, self._paced_until_s - _REWRITTEN_AHEAD_S - self._clock.monotonic_s())

    def _pace(self, size_bytes: int) -> None:
        now_s = self._clock.monotonic_s()
        begin_s = min(max(self._paced_until_s, now_s), now_s + _REWRITTEN_AHEAD_S)
        self._paced_until_s = begin_s + size_bytes / _REWRITTEN_BYTES_PER_S

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
