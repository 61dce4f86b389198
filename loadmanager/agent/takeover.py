from collections.abc import Collection
from dataclasses import replace

import structlog

from loadmanager.agent.lease_terms import Displaced, MembershipEnded
from loadmanager.common.identity import Identity
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.succession import Rival, Verdict, judge, take_overs
from loadmanager.core.wire.records import AgentRecord, decode_agent
from loadmanager.ports.coordination import Coordination
from loadmanager.ports.host import Clock

log = structlog.get_logger()


class StandingBy(MembershipEnded):
    """Another sidecar has this broker, and must not be displaced while it lives."""


class Takeover:
    """Keeps this agent's attempts to register, and judges other agents' marks by them."""

    def __init__(self, identity: Identity, coordination: Coordination, clock: Clock) -> None:
        self._identity = identity
        self._coordination = coordination
        self._clock = clock
        self._own_epoch: int | None = None
        self._registered_epoch = 0

    def record(self, rivals: Collection[Rival]) -> AgentRecord:
        """Return this agent's mark, if it may register over those of ``rivals``.

        Raises `Displaced`: one of them registered after this agent; `StandingBy`: one of them must
        be gone first.
        """
        me = self._me()
        verdict, rival = judge(me, self._own_epoch, rivals)
        if verdict is Verdict.END and rival is not None:
            raise Displaced(
                f"{rival.record} took broker {self._identity.broker} over from this one; "
                "expected one sidecar for each broker id"
            )
        if verdict is Verdict.STAND_BY and rival is not None:
            raise StandingBy(
                f"{rival.record} has broker {self._identity.broker} and lives; "
                "expected one sidecar for each broker id, so this one waits until it ends"
            )
        return replace(me, take_overs=take_overs(me, rivals))

    async def marks(self) -> tuple[tuple[str, ...], tuple[Rival, ...]]:
        """Return the paths of all marks of this broker, and the other runs among them."""
        folder = znodes.agents(self._identity.broker)
        paths = [f"{folder}/{name}" for name in await self._coordination.children(folder)]
        rivals = []
        for path in paths:
            node = await self._coordination.get(path)
            if node is not None:
                record = _read(path, node.data)
                ours = node.stat.ephemeral_owner == self._coordination.session.session_id
                if not ours and record.instance != self._identity.instance:
                    rivals.append(Rival(record, node.stat.czxid))
        return tuple(paths), tuple(rivals)

    def tried(self, rivals: Collection[Rival]) -> int | None:
        """Note that a registration over these is on its way; return what `untried` takes."""
        before = self._own_epoch
        seen = max((rival.epoch for rival in rivals), default=0)
        self._own_epoch = max(seen, before or 0)
        return before

    def untried(self, before: int | None) -> None:
        """Record that the registration was certainly not applied."""
        self._own_epoch = before

    def registered(self, agent_epoch: int) -> None:
        if agent_epoch < self._registered_epoch:
            log.error(
                "zookeeper.data.replaced",
                why="its transaction ids went back",
                agent_epoch=agent_epoch,
                former=self._registered_epoch,
            )
        self._own_epoch = self._registered_epoch = agent_epoch

    async def insist(self) -> None:
        """Raise if another agent still commands the broker.

        Raises `Displaced`: an agent that registered after this one commands it; `StandingBy`:
        another agent commands it, and this agent never registered; `CoordinationError`: the marks
        cannot be read now.
        """
        _, rivals = await self.marks()
        self.record(rivals)

    def _me(self) -> AgentRecord:
        identity = self._identity
        return AgentRecord(
            instance=identity.instance,
            host=identity.host,
            process_id=identity.process_id,
            sidecar_url=identity.sidecar_url,
            registered_at_ms=self._clock.wall_ms(),
        )


def _read(path: str, data: bytes) -> AgentRecord:
    try:
        return decode_agent(path, data)
    except MalformedContent as error:
        log.warning("znode.content.refused", path=path, error=str(error))
        return AgentRecord()
