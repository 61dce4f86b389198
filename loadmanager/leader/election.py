import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from loadmanager.common.cluster_state import ClusterState
from loadmanager.common.context import Identity, Liveness, UnexpectedErrors, first_leaf
from loadmanager.core import znodes
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.leadership import Contender, Standing, judge
from loadmanager.ports.coordination import (
    Check,
    CommitRejected,
    Connection,
    CoordinationError,
    Create,
    Delete,
    Disconnected,
    NodeMissing,
    SetData,
)
from loadmanager.ports.host import Clock
from loadmanager.ports.session import Coordination

log = structlog.get_logger()

TURN: Final = "turn of the election"
_RECHECK_S = 30.0
_RETRY_S = 0.2
_AFTER_ERROR_S = 1.0
STAND_BACK_S: Final = 30.0
_HEAD_START_S = 0.3


@dataclass(frozen=True, slots=True)
class Term:
    """``epoch`` is the version of ``/loadbalance/epoch``, which every write of the term checks."""

    epoch: int
    session_id: int


class Deposed(LoadManagerError):
    """The epoch has changed: another sidecar leads."""


class TermGivenUp(LoadManagerError):
    """This leader cannot work, but another may be able to."""


class Elector(Protocol):
    """A candidate's part of the election: a sidecar's `Context`, or an attached controller."""

    identity: Identity
    coordination: Coordination
    cluster_state: ClusterState
    clock: Clock
    unexpected: UnexpectedErrors


@dataclass(eq=False)
class Election:
    """Takes part in the election for as long as it runs.

    Only an ``eligible`` agent campaigns. ``lead`` runs during a term and is cancelled at its end.
    ``barred``: others cannot reach it, so it must not lead, and gives up its term.
    """

    parts: Elector
    eligible: Callable[[], bool]
    lead: Callable[[Term], Awaitable[None]]
    barred: Callable[[], bool] = lambda: False
    liveness: Liveness = field(default_factory=Liveness)

    def __post_init__(self) -> None:
        self._coordination = self.parts.coordination
        self._cluster_state = self.parts.cluster_state
        self._identity = self.parts.identity
        self._clock = self.parts.clock
        self._won: Term | None = None
        self._unexpected = self.parts.unexpected
        self._held_back_until_s = -math.inf

    async def run(self) -> None:
        while True:
            self.liveness.begun(TURN, lambda: _RECHECK_S)
            try:
                await self._next_turn()
            except CoordinationError as error:
                log.debug("election.attempt.failed", error=str(error) or type(error).__name__)
                await self._clock.sleep(_RETRY_S)
            except Exception as error:  # noqa: BLE001 - no error of one turn ends the sidecar
                self._unexpected.caught("election", error)
                await self._clock.sleep(_AFTER_ERROR_S)

    async def resign(self) -> None:
        """Delete the election node, so that others need not wait for the session to expire."""
        self.eligible = lambda: False
        if self._won is not None and self._standing() is Standing.LEAD:
            await self._vacate(self._won)

    def _standing(self) -> Standing:
        session = self._coordination.session
        candidate = Contender(self._identity.broker, self._identity.instance, session.session_id)
        connected = session.connection is Connection.CONNECTED and self._cluster_state.complete
        standing = judge(candidate, self._cluster_state.incumbent, connected=connected)
        if standing is Standing.LEAD and self._won and self._is_ahead_of(self._won.epoch):
            return Standing.CLEAR
        return standing

    def _is_ahead_of(self, epoch: int) -> bool:
        leader = self._cluster_state.leader
        return leader is not None and leader.epoch > epoch

    async def _next_turn(self) -> None:
        standing = self._standing()
        held_back_s = self._held_back_until_s - self._clock.monotonic_s()
        if standing is Standing.CAMPAIGN and held_back_s > 0:
            await self._cluster_state.changes.wait(min(held_back_s, _RECHECK_S))
        elif standing is Standing.CAMPAIGN and self.eligible() and not self.barred():
            first = self._cluster_state.successors
            if first and self._identity.broker not in first:
                # The successors have already read the loads, and can decide at once.
                await self._clock.sleep(_HEAD_START_S)
            if self._standing() is Standing.CAMPAIGN and self.eligible():
                await self._campaign()
        elif standing is Standing.CLEAR or (standing is Standing.LEAD and held_back_s > 0):
            await self._clear()
        elif standing is Standing.LEAD and self._won is None:
            # The reply to the electing commit was lost: the epoch node shows the result.
            await self._recover()
        elif standing is Standing.LEAD and self._won is not None and self.barred():
            await self._give_up(self._won)
        elif standing is Standing.LEAD and self._won is not None:
            await self._lead_while_elected(self._won)
        elif not await self._cluster_state.changes.wait(_RECHECK_S):
            # A watch that never fires would leave the cluster without a leader forever.
            self._cluster_state.leader_read(await self._coordination.get(znodes.LEADER))

    async def _campaign(self) -> None:
        node = await self._coordination.get(znodes.EPOCH)
        if node is None:
            await self._coordination.ensure(znodes.EPOCH)
            node = await self._coordination.get(znodes.EPOCH)
        if node is None:
            raise NodeMissing(znodes.EPOCH)
        epoch = node.stat.version + 1
        leader = Create(znodes.LEADER, self._identity.leader_content(epoch), ephemeral=True)
        mark = SetData(znodes.EPOCH, self._identity.instance.encode(), node.stat.version)
        session_id = self._coordination.session.session_id
        try:
            await self._coordination.commit([leader, mark])
        except CommitRejected as rejected:
            log.debug("election.race.lost", why=str(rejected))
            await self._cluster_state.changes.wait(_RETRY_S)
            return
        except Disconnected:
            self._won = None
            raise
        self._won = Term(epoch, session_id)
        await self._until_seen()

    async def _recover(self) -> None:
        node = await self._coordination.get(znodes.EPOCH)
        ours = node is not None and node.data == self._identity.instance.encode()
        if node is not None and ours and not self._is_ahead_of(node.stat.version):
            self._won = Term(node.stat.version, self._coordination.session.session_id)
        else:
            await self._clear()

    async def _vacate(self, term: Term) -> None:
        # Do not delete the node of another sidecar that was elected meanwhile.
        check = Check(znodes.EPOCH, term.epoch)
        await self._coordination.commit([check, Delete(znodes.LEADER)])

    async def _give_up(self, term: Term) -> None:
        try:
            await self._vacate(term)
            log.warning("leadership.term.given_up", epoch=term.epoch)
        except CommitRejected as rejected:
            log.debug("election.node.changed", error=str(rejected))
        await self._cluster_state.changes.wait(_RETRY_S)

    async def _clear(self) -> None:
        # The incumbent judged to be ours: the cluster state may change before the nodes are read.
        incumbent = self._cluster_state.incumbent
        epoch = await self._coordination.get(znodes.EPOCH)
        node = await self._coordination.get(znodes.LEADER)
        if epoch and node and incumbent and node.stat.ephemeral_owner == incumbent.session_id:
            # A recreated node has the same version, so the epoch is checked instead.
            check = Check(znodes.EPOCH, epoch.stat.version)
            try:
                await self._coordination.commit([check, Delete(znodes.LEADER)])
                log.info("election.node.deleted", session=incumbent.session_id)
            except CommitRejected as rejected:
                log.debug("election.node.changed", error=str(rejected))
        await self._cluster_state.changes.wait(_RETRY_S)

    async def _until_seen(self) -> None:
        """Wait until the cluster state shows an election node, or it is read as vanished."""
        while self._standing() is Standing.CAMPAIGN:
            if not await self._cluster_state.changes.wait(_RETRY_S):
                node = await self._coordination.get(znodes.LEADER)
                self._cluster_state.leader_read(node)
                if node is None:
                    self._won = None
                    return

    async def _lead_while_elected(self, term: Term) -> None:
        """Lead until the node is no longer ours; a suspended session does not end the term.

        Every write of the term checks the connection and the epoch, so a term that has already
        ended does no harm until this is detected.
        """
        log.info("leadership.term.begun", epoch=term.epoch)
        leading = asyncio.ensure_future(self.lead(term))
        try:
            while not leading.done():
                session_id = self._coordination.session.session_id
                if session_id != term.session_id:
                    break
                if self._standing() not in {Standing.LEAD, Standing.DOUBT} or self.barred():
                    break
                self.liveness.begun(TURN, lambda: _RECHECK_S)
                changed = asyncio.ensure_future(self._cluster_state.changes.wait(_RECHECK_S))
                await asyncio.wait({leading, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
        finally:
            leading.cancel()
            await asyncio.wait({leading})
            self._won = None
            log.info("leadership.term.ended", epoch=term.epoch)
        if not leading.cancelled():
            self._log_end(leading.exception())
            await self._clock.sleep(_RETRY_S)

    def _log_end(self, error: BaseException | None) -> None:
        """Log why a term ended early; a leader that cannot work does not campaign for a while."""
        if error is None:
            return
        group = BaseExceptionGroup("term", [error])
        expected, rest = group.split((Deposed, CoordinationError))
        if expected is not None:
            log.warning("leadership.term.interrupted", why=str(expected.exceptions))
        if rest is None:
            return
        given_up, unexpected = rest.split(TermGivenUp)
        if unexpected is not None:
            self._unexpected.caught("term", first_leaf(unexpected))
        self._held_back_until_s = self._clock.monotonic_s() + STAND_BACK_S
        why = str(first_leaf(given_up or rest))
        log.error("leadership.term.given_up", why=why, stand_back_s=STAND_BACK_S)
