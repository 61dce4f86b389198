"""Registers a broker in each session, and deregisters it, also if it cannot serve.

An ephemeral node of an earlier session exists until that session expires. It can neither be
relied upon (it may vanish at any time) nor waited for (a restarted broker would be absent for a
whole session timeout). So it is deleted and recreated in one commit: watchers of the folder
never observe a gap, and the czxid of the new node, the agent epoch, is higher than that of any
earlier registration of this broker.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from loadmanager.common.context import Context, Identity
from loadmanager.common.watching import readable
from loadmanager.core import znodes
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.leadership import Rival, Verdict, judge_rivals, take_overs
from loadmanager.core.lease import longest_lease_fraction
from loadmanager.core.load import LoadReport
from loadmanager.core.orders import decode_owned, encode_owned
from loadmanager.core.wire.records import AgentRecord, decode_agent, encode_agent
from loadmanager.core.wire.reports import encode_loads, encode_registration
from loadmanager.ports.coordination import (
    CommitRejected,
    Connection,
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
from loadmanager.ports.host import Clock
from loadmanager.ports.session import Coordination

log = structlog.get_logger()


class Agent(Protocol):
    @property
    def registered(self) -> bool:
        """Whether the broker is registered now, so that this sidecar may lead."""

    def unready(self) -> Iterator[str]: ...

    async def run(self) -> None:
        """Run until cancelled or `leave`. Raises `ExceptionGroup`, with `Displaced` if it was."""

    async def drain(self) -> None:
        """Wait until the broker's bundles are handed over, if required."""

    async def leave(self, within_s: float) -> None: ...

    async def serving_ended(self) -> None:
        """Wait until the broker serves no bundle protected by this session's locks."""


class MembershipEnded(LoadManagerError):
    """This membership has ended; the agent registers again when it can."""


class BrokerLost(MembershipEnded):
    """The broker accepted no renewal until its lease had expired: it serves nothing."""


class LeaseLapsed(MembershipEnded):
    """ZooKeeper answers too late for a lease while the session lives: others should serve."""


class Displaced(LoadManagerError):
    """Another sidecar took over this broker; this one has to stop."""


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """``fraction`` of a session is leased; ``tick_s`` is that of the ensemble, 0 if unknown."""

    fraction: float
    interval_fraction: float
    tick_s: float = 0.0

    def safe_fraction(self, timeout_s: float) -> float:
        """Raises `MembershipEnded`: it is so small that one lost renewal would stop the broker."""
        longest = longest_lease_fraction(timeout_s, self.tick_s)
        if longest * timeout_s < self.shortest_s(timeout_s):
            raise MembershipEnded(
                f"no lease is safe: the servers granted a session of {timeout_s:g} s, and "
                f"[zookeeper] tick_s is {self.tick_s:g}; expected the tickTime of the ensemble, "
                "and a session of two ticks or more"
            )
        return min(self.fraction, longest)

    def shortest_s(self, timeout_s: float) -> float:
        return 2 * self.interval_fraction * timeout_s


class OnStandby(MembershipEnded):
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
        """Return this agent's mark, if it may register over ``rivals``.

        Raises `Displaced`: one registered after this agent; `OnStandby`: one must end first.
        """
        identity = self._identity
        me = AgentRecord(
            instance=identity.instance,
            host=identity.host,
            process_id=identity.process_id,
            sidecar_url=identity.sidecar_url,
            registered_at_ms=self._clock.wall_ms(),
        )
        verdict, rival = judge_rivals(me, self._own_epoch, rivals)
        if verdict is Verdict.END and rival is not None:
            raise Displaced(
                f"{rival.record} took broker {self._identity.broker} over from this one; "
                "expected one sidecar for each broker id"
            )
        if verdict is Verdict.STAND_BY and rival is not None:
            raise OnStandby(
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
                record = AgentRecord()
                with readable(path):
                    record = decode_agent(path, node.data)
                ours = node.stat.ephemeral_owner == self._coordination.session.session_id
                if not ours and record.instance != self._identity.instance:
                    rivals.append(Rival(record, node.stat.czxid))
        return tuple(paths), tuple(rivals)

    def attempted(self, rivals: Collection[Rival]) -> int | None:
        """Note that a registration over these is on its way; return what `not_attempted` takes."""
        before = self._own_epoch
        seen = max((rival.epoch for rival in rivals), default=0)
        self._own_epoch = max(seen, before or 0)
        return before

    def not_attempted(self, before: int | None) -> None:
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

    async def check_command(self) -> None:
        """Raise `Displaced` or `OnStandby` if another agent still commands the broker."""
        _, rivals = await self.marks()
        self.record(rivals)


@dataclass(frozen=True, slots=True)
class Membership:
    """``agent_epoch`` is the czxid of the registration; the broker obeys only the highest."""

    broker: BrokerId
    session_id: int
    agent_epoch: int


_ATTEMPTS = 10
_CONNECT_POLL_S = 0.1


async def register(
    coordination: Coordination, identity: Identity, report: LoadReport, succession: Takeover
) -> tuple[Membership, Mapping[BundleId, int]]:
    """Register the broker with its first report and an empty owned list.

    Return the membership, and the bundles with tokens that an earlier session still lists: their
    locks may be cleared once the broker confirmed the new epoch. Raises as `Takeover.record`, and
    `SessionLost`, or `Disconnected`: the reply was lost; to register again is safe.
    """
    session_id = coordination.session.session_id
    broker = identity.broker
    folders = (znodes.BROKERS, znodes.LOADS, znodes.OWNED, znodes.LOCKS, znodes.agents(broker))
    for path in folders:
        await coordination.ensure(path)
    mark = znodes.agent(broker, session_id)
    contents = {
        znodes.registration(broker): encode_registration(report),
        znodes.loads(broker): encode_loads(report),
        znodes.owned(broker): encode_owned({}),
    }
    for _ in range(_ATTEMPTS):
        # Read before all else: its version shows that no agent registered since.
        folder = await coordination.get(znodes.agents(broker))
        marks, rivals = await succession.marks()
        contents[mark] = encode_agent(succession.record(rivals))
        former = await coordination.get(znodes.owned(broker))
        turn = SetData(znodes.agents(broker), b"", folder.stat.version if folder else 0)
        operations = [turn, *await _replacing(coordination, contents, marks)]
        before = succession.attempted(rivals)
        try:
            await coordination.commit(operations)
        except CommitRejected as rejected:
            succession.not_attempted(before)
            if not isinstance(rejected.cause, NodeExists | NodeMissing | VersionMismatch):
                raise rejected.cause from rejected
            continue
        node = await coordination.get(znodes.registration(broker))
        if node is None or node.stat.ephemeral_owner != session_id:
            raise SessionLost(f"{znodes.registration(broker)} is not of this session any more")
        log.info("broker.registration.created", broker=broker, agent_epoch=node.stat.czxid)
        membership = Membership(broker, session_id, node.stat.czxid)
        succession.registered(membership.agent_epoch)
        return membership, listed_in(former, broker)
    raise SessionLost(f"{znodes.registration(broker)} changed at each of {_ATTEMPTS} attempts")


async def _replacing(
    coordination: Coordination, contents: Mapping[str, bytes], marks: Sequence[str]
) -> list[Operation]:
    operations: list[Operation] = [Delete(mark) for mark in marks if mark not in contents]
    for path, content in contents.items():
        node = await coordination.get(path)
        if node is not None:
            operations.append(Delete(path, node.stat.version))
        operations.append(Create(path, content, ephemeral=True))
    return operations


def listed_in(former: Node | None, broker: str) -> Mapping[BundleId, int]:
    """Return the bundles that an owned list names, with tokens; none if it cannot be read."""
    path = f"{znodes.OWNED}/{broker}"
    with readable(path):
        if former is not None:
            return decode_owned(path, former.data, former.stat.mzxid).tokens
    return {}


async def deregister(coordination: Coordination, membership: Membership) -> None:
    """Deregister the broker while the session lives on; its list names its locks until the end."""
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
        context = self._context
        while context.coordination.session.connection is not Connection.CONNECTED:
            await context.clock.sleep(_CONNECT_POLL_S)
        await self._deregister_given_up()

    async def until_deleted(self, membership: Membership, leaving: Callable[[], bool]) -> None:
        """Return when another client deleted the registration, not while ``leaving``.

        Raises `MembershipEnded`: its session was replaced; `Displaced`: another registered it.
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
        """Deregister a broker that cannot serve, which no other agent may; retried if lost."""
        self._given_up = membership
        await self._deregister_given_up()

    async def _deregister_given_up(self) -> None:
        if self._given_up is not None:
            await deregister(self._context.coordination, self._given_up)
            self._given_up = None

    async def take_back(self) -> None:
        """Deregister a silent broker, also where the reply to its registration was lost."""
        coordination, broker = self._context.coordination, self._context.identity.broker
        session_id = coordination.session.session_id
        node = await coordination.get(znodes.registration(broker))
        if node is not None and node.stat.ephemeral_owner == session_id:
            await self.give_up(Membership(broker, session_id, node.stat.czxid))
