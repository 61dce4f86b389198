"""Whether a controller may act: alone on its cluster, or elected among several candidates."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from loadmanager.core import znodes
from loadmanager.leader.election import Deposed, Term
from loadmanager.ports import (
    Check,
    CommitRejected,
    Connection,
    Coordination,
    CoordinationError,
    NodeMissing,
)


class Mandate(Protocol):
    """By what right a controller acts."""

    @property
    def epoch(self) -> int:
        """Of the term, 0 where there are no terms."""

    def lapsed(self) -> str:
        """Return why no order may be sent now; "" if one may."""

    async def confirm(self) -> str:
        """Return as `lapsed`, having asked.

        Raises:
            Deposed: another one leads.
        """

    async def hands_over(self) -> bool:
        """Return whether another controller goes on, so that the settings stay as they are."""


class Alone:
    """The one controller of its state folder."""

    epoch: Final = 0

    def lapsed(self) -> str:
        """Return that it may act."""
        return ""

    async def confirm(self) -> str:
        """Return that it may act."""
        return ""

    async def hands_over(self) -> bool:
        """Return that no other candidate goes on."""
        return False


@dataclass(frozen=True, slots=True)
class Elected:
    """The controller that candidates have elected; ``name`` is its own among them."""

    term: Term
    coordination: Coordination
    name: str

    @property
    def epoch(self) -> int:
        """The epoch of its term."""
        return self.term.epoch

    def lapsed(self) -> str:
        """Return why the session may be gone, and another candidate elected."""
        session = self.coordination.session
        if session.session_id != self.term.session_id:
            return "its session with ZooKeeper has ended"
        if session.connection is not Connection.CONNECTED:
            return "ZooKeeper does not answer"
        return ""

    async def confirm(self) -> str:
        """Have ZooKeeper confirm that no later term began; see `Mandate.confirm`."""
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
        """Withdraw; return whether the term is lost already, or other candidates wait."""
        try:
            if await self.confirm():
                return True
            return await withdrawn(self.coordination, self.name)
        except (Deposed, CoordinationError):
            return True


async def withdrawn(coordination: Coordination, name: str) -> bool:
    """Take a candidate off the list; return whether others are on it; raises `CoordinationError`.

    Each candidate takes itself off before it reads the list. So of several that end at the same
    time, the last one to do so finds no other.
    """
    with suppress(NodeMissing):
        await coordination.delete(f"{znodes.ATTACH_CANDIDATES}/{name}")
    await coordination.sync(znodes.ATTACH_CANDIDATES)
    return bool(await coordination.children(znodes.ATTACH_CANDIDATES))
