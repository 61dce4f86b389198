from contextlib import suppress
from dataclasses import dataclass

from loadmanager.core import znodes
from loadmanager.leader.election import Deposed, Term
from loadmanager.ports.coordination import (
    Check,
    CommitRejected,
    Connection,
    Coordination,
    CoordinationError,
    NodeMissing,
)


class Mandate:
    """Whether a controller may act: this one may, as the only one of its state folder."""

    @property
    def epoch(self) -> int:
        return 0

    def lapsed(self) -> str:
        """Return why no order may be sent now, "" if orders are allowed."""
        return ""

    async def confirm(self) -> str:
        """Return as `lapsed`, after a request to ZooKeeper with elections. Raises `Deposed`."""
        return self.lapsed()

    async def hands_over(self) -> bool:
        """Return whether another controller takes over, so that Pulsar's balancer stays off."""
        return False


@dataclass(frozen=True, slots=True)
class Elected(Mandate):
    term: Term
    coordination: Coordination
    name: str

    @property
    def epoch(self) -> int:
        return self.term.epoch

    def lapsed(self) -> str:
        session = self.coordination.session
        if session.session_id != self.term.session_id:
            return "its session with ZooKeeper has ended"
        if session.connection is not Connection.CONNECTED:
            return "ZooKeeper does not answer"
        return ""

    async def confirm(self) -> str:
        """Have ZooKeeper confirm that no later term began."""
        if why := self.lapsed():
            return why
        try:
            await self.coordination.commit([Check(znodes.EPOCH, self.term.epoch)])
        except CommitRejected as error:
            raise Deposed(f"term {self.term.epoch} is over: {error}") from None
        except CoordinationError as error:
            return f"ZooKeeper does not confirm that term {self.term.epoch} lasts: {error}"
        return ""

    async def hands_over(self) -> bool:
        """Withdraw; return whether the term is already lost, or other candidates are listed."""
        try:
            if await self.confirm():
                return True
            return await withdrawn(self.coordination, self.name)
        except (Deposed, CoordinationError):
            return True


async def withdrawn(coordination: Coordination, name: str) -> bool:
    """Remove a candidate; return whether others are listed; raises `CoordinationError`.

    Each candidate removes itself before it reads the list. So if several end at the same time,
    the last one to remove itself finds the list empty.
    """
    with suppress(NodeMissing):
        await coordination.delete(f"{znodes.ATTACH_CANDIDATES}/{name}")
    await coordination.sync(znodes.ATTACH_CANDIDATES)
    return bool(await coordination.children(znodes.ATTACH_CANDIDATES))
