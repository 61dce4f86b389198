"""Registers a broker in each session, and deregisters it, also if it cannot serve.

An ephemeral node of an earlier session exists until that session expires. It can neither be
relied upon (it may vanish at any time) nor waited for (a restarted broker would be absent for a
whole session timeout). So it is deleted and recreated in one commit: watchers of the folder
never observe a gap, and the czxid of the new node, the agent epoch, is higher than that of any
earlier registration of this broker.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from loadmanager.agent.lease_terms import Displaced, MembershipEnded
from loadmanager.agent.takeover import Takeover
from loadmanager.common.context import Context
from loadmanager.common.identity import Identity
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import LoadReport
from loadmanager.core.orders import decode_owned, encode_owned
from loadmanager.core.wire.records import encode_agent
from loadmanager.core.wire.registrations import encode_registration
from loadmanager.core.wire.reports import encode_loads
from loadmanager.ports.coordination import (
    CommitRejected,
    Connection,
    Coordination,
    Create,
    Delete,
    Node,
    NodeExists,
    NodeMissing,
    Operation,
    SessionLost,
    SetData,
    VersionMismatch,
)


@dataclass(frozen=True, slots=True)
class Membership:
    """This agent as registered: the session that holds its nodes, and its agent epoch.

    ``agent_epoch`` is the czxid of the registration, so it grows with every session and
    every restart of the agent; the broker obeys only the highest.
    """

    broker: BrokerId
    session_id: int
    agent_epoch: int


log = structlog.get_logger()

_ATTEMPTS = 10
_CONNECT_POLL_S = 0.1


async def register(
    coordination: Coordination, identity: Identity, report: LoadReport, succession: Takeover
) -> tuple[Membership, Mapping[BundleId, int]]:
    """Register the broker with its first report and an empty owned list.

    Return the membership, and the bundles that an earlier session of this broker still
    lists as owned, with their tokens: their locks may be cleared once the broker
    confirmed the new epoch.

    Raises:
        Displaced: another agent registered the broker after this one had.
        StandingBy: another agent has the broker, and must be gone first.
        SessionLost: the session ended meanwhile.
        Disconnected: the reply was lost; to register again is safe.
    """
    session_id = coordination.session.session_id
    broker = identity.broker
    folders = (znodes.BROKERS, znodes.LOADS, znodes.OWNED, znodes.LOCKS, znodes.agents(broker))
    for folder in folders:
        await coordination.ensure(folder)
    mark = znodes.agent(broker, session_id)
    contents = {
        znodes.registration(broker): encode_registration(report),
        znodes.loads(broker): encode_loads(report),
        znodes.owned(broker): encode_owned({}),
    }
    for _ in range(_ATTEMPTS):
        # Read before all else: its version shows that no agent registered since.
        turn = await _turn(coordination, broker)
        marks, rivals = await succession.marks()
        contents[mark] = encode_agent(succession.record(rivals))
        former = await coordination.get(znodes.owned(broker))
        operations = [turn, *await _replacing(coordination, contents, marks)]
        before = succession.tried(rivals)
        try:
            await coordination.commit(operations)
        except CommitRejected as rejected:
            succession.untried(before)
            if not isinstance(rejected.cause, NodeExists | NodeMissing | VersionMismatch):
                raise rejected.cause from rejected
            continue
        membership = await _confirmed(coordination, identity, session_id)
        succession.registered(membership.agent_epoch)
        return membership, listed_in(former, broker)
    raise SessionLost(f"{znodes.registration(broker)} changed at each of {_ATTEMPTS} attempts")


async def _turn(coordination: Coordination, broker: BrokerId) -> Operation:
    """Return checks that fail if another agent of the broker registers first."""
    folder = znodes.agents(broker)
    node = await coordination.get(folder)
    return SetData(folder, b"", 0 if node is None else node.stat.version)


async def _replacing(
    coordination: Coordination, contents: Mapping[str, bytes], marks: Sequence[str]
) -> list[Operation]:
    """Return operations that replace existing nodes by ``contents`` and delete all ``marks``."""
    operations: list[Operation] = [Delete(mark) for mark in marks if mark not in contents]
    for path, content in contents.items():
        node = await coordination.get(path)
        if node is not None:
            operations.append(Delete(path, node.stat.version))
        operations.append(Create(path, content, ephemeral=True))
    return operations


async def _confirmed(coordination: Coordination, identity: Identity, session_id: int) -> Membership:
    node = await coordination.get(znodes.registration(identity.broker))
    if node is None or node.stat.ephemeral_owner != session_id:
        raise SessionLost(f"{znodes.registration(identity.broker)} is not of this session any more")
    log.info("broker.registration.created", broker=identity.broker, agent_epoch=node.stat.czxid)
    return Membership(identity.broker, session_id, node.stat.czxid)


def listed_in(former: Node | None, broker: str) -> Mapping[BundleId, int]:
    """Return the bundles that an owned list names, with tokens; none if it cannot be read."""
    if former is None:
        return {}
    try:
        listed = decode_owned(f"{znodes.OWNED}/{broker}", former.data, former.stat.mzxid)
    except MalformedContent as error:
        log.warning("znode.content.refused", path=error.where, error=str(error))
        return {}
    return listed.tokens


async def deregister(coordination: Coordination, membership: Membership) -> None:
    """Deregister the broker while the session lives on.

    Its owned list stays, for as long as locks are held it must name them.
    """
    for path in (znodes.registration(membership.broker), znodes.loads(membership.broker)):
        node = await coordination.get(path)
        if node is not None and node.stat.ephemeral_owner == membership.session_id:
            await coordination.delete(path, version=node.stat.version)
    log.info("broker.registration.deleted", broker=membership.broker)


class Registrar:
    """Deregisters the broker of one sidecar if it cannot serve, despite lost replies."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._given_up: Membership | None = None

    async def ready(self) -> None:
        """Wait until there is a session without an abandoned registration."""
        context = self._context
        while context.coordination.session.connection is not Connection.CONNECTED:
            await context.clock.sleep(_CONNECT_POLL_S)
        await self._deregister_given_up()

    async def until_deleted(self, membership: Membership, leaving: Callable[[], bool]) -> None:
        """Return when the registration was deleted by another client, not while ``leaving``.

        Raises `MembershipEnded`: its session was replaced; `Displaced`: another session registered
        the same broker after us.
        """
        seen: asyncio.Queue[Node | None] = asyncio.Queue()
        coordination = self._context.coordination
        watch = coordination.watch(znodes.registration(membership.broker), seen.put_nowait)
        try:
            while True:
                node = await seen.get()
                if coordination.session.session_id != membership.session_id:
                    raise MembershipEnded("the session was replaced")
                if leaving():
                    continue
                if node is None:
                    return
                if node.stat.ephemeral_owner != membership.session_id:
                    raise Displaced(
                        f"session {node.stat.ephemeral_owner:#x} registered {membership.broker} too"
                    )
        finally:
            watch.close()

    async def give_up(self, membership: Membership) -> None:
        """Deregister a broker that cannot serve; retry later if the write is lost.

        The session lives on, and with it a registration that no other agent may delete.
        """
        self._given_up = membership
        await self._deregister_given_up()

    async def _deregister_given_up(self) -> None:
        if self._given_up is not None:
            await deregister(self._context.coordination, self._given_up)
            self._given_up = None

    async def take_back(self) -> None:
        """Deregister a broker that does not answer, if this session registered it.

        So it is where the reply to a registration was lost: no other agent may delete that.
        """
        coordination, broker = self._context.coordination, self._context.identity.broker
        session_id = coordination.session.session_id
        node = await coordination.get(znodes.registration(broker))
        if node is not None and node.stat.ephemeral_owner == session_id:
            await self.give_up(Membership(broker, session_id, node.stat.czxid))
