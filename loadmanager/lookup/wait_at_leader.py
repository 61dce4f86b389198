"""Lets lookups of unserved bundles wait at the leader, where there are many brokers.

The leader follows all owned lists in any case, so it can say when a bundle is served. If each
sidecar with a waiting lookup followed the list of the planned owner instead, each change of that
list would be read by all of them, and a slow cluster would become slower.

The leader's word is not enough to name an owner: it may be notified late. The lock is read once
more, on this sidecar's own connection.
"""

import structlog

from loadmanager.common.context import Context
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId
from loadmanager.lookup.locks import read_lock
from loadmanager.ports.coordination import CoordinationError
from loadmanager.ports.lookup import LeaderInfo, LeaderLine, LockHolder, LookupRefused

log = structlog.get_logger()

MOST_WAITING = 2_048
"""Most lookups of all sidecars that wait at the leader. Each keeps a connection open, and a server
accepts 4,096. Each sidecar has an equal share; further lookups wait by themselves."""

_QUESTION_S = 3.0
_SHORTEST_WAIT_S = 1.0


class WaitAtLeader:
    """The lookups of one sidecar that wait at the leader."""

    def __init__(self, context: Context, leader_line: LeaderLine) -> None:
        self._context = context
        self._leader_line = leader_line
        self._waiting = 0

    async def until_served(self, bundle: BundleId, deadline_s: float) -> LockHolder | None:
        """Have the leader place ``bundle``; return the broker that serves it, and its token.

        Return None if this sidecar leads or there are few brokers, if all that may wait at the
        leader do, if the leader does not answer, or at ``deadline_s`` on the monotonic clock:
        then the lookup finds the owner by itself.
        """
        now_s = self._context.clock.monotonic_s
        while (left_s := deadline_s - now_s()) > 0 and (leader := self._leader_to_ask()):
            asked_at_s = now_s()
            self._waiting += 1
            try:
                served = await self._leader_line.until_served(
                    leader, bundle, min(left_s, _QUESTION_S)
                )
            except LookupRefused as error:
                log.debug("lookup.assignment.failed", bundle=bundle, why=str(error))
                return None
            finally:
                self._waiting -= 1
            if served is not None:
                return served if await self._holds(served, bundle) else None
            if now_s() - asked_at_s < min(left_s, _SHORTEST_WAIT_S):
                return None  # It does not wait: asking again would be a busy loop.
        return None

    def _leader_to_ask(self) -> LeaderInfo | None:
        """Return the leader if a lookup may wait there."""
        cluster_state = self._context.cluster_state
        leader = cluster_state.leader
        if leader is None or leader.instance == self._context.identity.instance:
            return None
        share = max(1, MOST_WAITING // max(1, len(cluster_state.brokers)))
        return None if cluster_state.lists.few or self._waiting >= share else leader

    async def _holds(self, served: LockHolder, bundle: BundleId) -> bool:
        """Return whether the broker still holds the lock under which the leader saw it serve."""
        try:
            return await read_lock(self._context.coordination, bundle) == served
        except (TimeoutError, CoordinationError, MalformedContent) as error:
            log.debug("lookup.lock.read_failed", bundle=bundle, why=str(error))
            return False
