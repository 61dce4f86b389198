from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from loadmanager.common.context import Context
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.leader.election import Deposed, Term
from loadmanager.leader.term import LeaderTerm
from loadmanager.ports.coordination import CoordinationError
from loadmanager.ports.leading import LeaderElsewhere
from loadmanager.ports.lookup import NotLeader, Unavailable

log = structlog.get_logger()

_LOADS_WAIT_S = 10.0
_LOOK_S = 0.2


class Leadership:
    def __init__(self, open_term: Callable[[Term], LeaderTerm], context: Context) -> None:
        self._open_term = open_term
        self._identity = context.identity
        self._cluster_state = context.cluster_state
        self._clock = context.clock
        self._metrics = context.metrics
        self._leader_term: LeaderTerm | None = None
        self.elected = False
        """Whether a term is under way, whether or not it is ready."""

    @property
    def leader_term(self) -> LeaderTerm | None:
        """The current term, None if this agent does not lead or the term is still being opened."""
        term = self._leader_term
        return term if term is not None and term.is_open else None

    def require_term(self) -> LeaderTerm:
        """Raises `LeaderElsewhere`, or `Unavailable`: no leader is at work."""
        leader_term = self.leader_term
        if leader_term is not None:
            return leader_term
        leader = self._cluster_state.leader
        if leader is None or leader.instance == self._identity.instance:
            raise Unavailable("no leader is at work")
        if not leader.sidecar_url:
            raise Unavailable(f"the leader {leader.broker} has no sidecar to ask")
        raise LeaderElsewhere(leader.sidecar_url)

    async def lead(self, term: Term) -> None:
        """Lead until cancelled at the term's end; raises as `LeaderTerm.run`."""
        self.elected = True
        self._metrics.is_leader.set(1)
        self._metrics.leader_changes.labels("gained").inc()
        try:
            with self._cluster_state.lists.followed():
                await self._read_cluster()
                self._leader_term = self._open_term(term)
                await self._leader_term.run()
        finally:
            self._leader_term, self.elected = None, False
            self._metrics.is_leader.set(0)
            self._metrics.leader_changes.labels("lost").inc()

    async def _read_cluster(self) -> None:
        """Wait until all loads and owned lists have been read, which decisions require.

        The wait is limited: with some of them, a leader can already place unserved bundles.
        """
        loads, lists = self._cluster_state.loads, self._cluster_state.lists
        loads.open()
        give_up_s = self._clock.monotonic_s() + _LOADS_WAIT_S
        while not (loads.complete and lists.all_read):
            if self._clock.monotonic_s() >= give_up_s:
                log.warning("leadership.loads.incomplete", brokers=len(loads.reports))
                return
            await self._cluster_state.changes.wait(_LOOK_S)

    async def assign(self, bundle: BundleId) -> BrokerId:
        """Raises `NotLeader`, or `Unavailable`: no broker can take the bundle."""
        leader_term = self.leader_term
        if leader_term is None:
            raise NotLeader("this sidecar does not lead now")
        return await leader_term.assign(bundle)


@contextmanager
def unavailable(what: str) -> Iterator[None]:
    """Raise `Unavailable` with ``what`` if orders can be neither read nor written now."""
    try:
        yield
    except (CoordinationError, Deposed) as error:
        raise Unavailable(f"{what}: {error}") from error
