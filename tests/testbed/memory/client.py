"""One session with the in-process service, for clients and for tests of faults."""

import asyncio
from collections.abc import Awaitable, Callable

from loadmanager.ports.session import Coordination
from tests.testbed.memory.link import LossPlace, MemoryLink
from tests.testbed.memory.server import Server
from tests.testbed.memory.service import MemoryService


async def next_turn() -> None:
    await asyncio.sleep(0)


class MemoryCoordination(Coordination):
    """The `Coordination` port on a `MemoryService`.

    Args:
        service: shared by all sessions of the test.
        timeout_s: the session timeout; time passes only by the service's clock.
        chroot: the path below which this session sees the tree.
        turn: awaited on a request's way there and back; see `MemoryLink`.
        link: the way to the service, if it is another one.
    """

    def __init__(
        self,
        service: MemoryService,
        *,
        timeout_s: float = 10.0,
        chroot: str = "",
        turn: Callable[[], Awaitable[None]] = next_turn,
        link: MemoryLink | None = None,
    ) -> None:
        self._memory_link = link or MemoryLink(service, timeout_s=timeout_s, turn=turn)
        self._service = service
        super().__init__(self._memory_link, chroot=chroot, timeout_s=timeout_s)

    def suspend(self) -> None:
        self._memory_link.suspend()

    def reconnect(self) -> None:
        """Mend the connection: the same session, or LOST and a new one if it expired."""
        self._memory_link.reconnect()

    def connect_to(self, server: Server) -> None:
        """Break the connection, and connect to this server at the next turn of the loop."""
        self._memory_link.connect_to(server)

    def expire(self) -> None:
        """Expire the session in the service.

        A connected client is hung up on, comes back at the next turn of the loop and
        finds out; a suspended one finds out when it is reconnected.
        """
        self._service.expire(self.session.session_id)

    def lose_next_request(self) -> None:
        self._memory_link.lose_next(LossPlace.REQUEST)

    def lose_next_reply(self) -> None:
        self._memory_link.lose_next(LossPlace.REPLY)
