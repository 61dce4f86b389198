"""Keeps one broker registered in each session, and deregisters it if it cannot serve."""

import asyncio
from collections.abc import Callable, Mapping

from loadmanager.agent.lease_terms import Displaced, MembershipEnded
from loadmanager.agent.registration import Membership, deregister, register
from loadmanager.agent.takeover import Takeover
from loadmanager.common.context import Context
from loadmanager.core import znodes
from loadmanager.core.ids import BundleId
from loadmanager.core.load import LoadReport
from loadmanager.ports.coordination import Connection, Node

_CONNECT_POLL_S = 0.1


class Registrar:
    """Registers and deregisters the broker of one sidecar, despite lost replies."""

    def __init__(self, context: Context, succession: Takeover) -> None:
        self._context = context
        self._succession = succession
        self._given_up: Membership | None = None

    async def ready(self) -> None:
        """Wait until there is a session without an abandoned registration."""
        context = self._context
        while context.coordination.session.connection is not Connection.CONNECTED:
            await context.clock.sleep(_CONNECT_POLL_S)
        await self._deregister_given_up()

    async def register(self, report: LoadReport) -> tuple[Membership, Mapping[BundleId, int]]:
        """Register with a first report; see `register`."""
        context = self._context
        return await register(context.coordination, context.identity, report, self._succession)

    async def until_deleted(self, membership: Membership, leaving: Callable[[], bool]) -> None:
        """Return when the registration was deleted by another client, not while ``leaving``.

        Raises:
            MembershipEnded: its session was replaced.
            Displaced: another session registered the same broker after us.
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
