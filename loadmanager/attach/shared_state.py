"""The state of one cluster in ZooKeeper, which all candidates share."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from loadmanager.attach.prior_settings import PriorSettings, StateUnusable, prior_of, text_of
from loadmanager.core import znodes
from loadmanager.ports import Coordination, CoordinationError, NodeExists, NodeMissing


@dataclass(frozen=True, slots=True)
class SharedState:
    """The `State` below a chroot."""

    coordination: Coordination

    @property
    def where(self) -> str:
        """The node of the prior settings."""
        return znodes.ATTACH_PRIOR

    @property
    def where_moves(self) -> str:
        """The node of the recent moves."""
        return znodes.ATTACH_MOVES

    async def read(self) -> PriorSettings | None:
        """Return the prior settings, None if none are stored.

        Raises:
            StateUnusable: the node cannot be read, or was not written by `write`.
        """
        text = await self._text(znodes.ATTACH_PRIOR)
        return None if text is None else prior_of(text, self.where)

    async def write(self, prior: PriorSettings) -> None:
        """Store the prior settings; raises `StateUnusable`."""
        await self._write(znodes.ATTACH_PRIOR, text_of(prior))

    async def remove(self) -> None:
        """Remove the prior settings; raises `StateUnusable`."""
        await self._remove(znodes.ATTACH_PRIOR)

    async def pause(self, why: str) -> None:
        """Stop all moves until `resume`; raises `StateUnusable`."""
        await self._write(znodes.ATTACH_PAUSED, why)

    async def resume(self) -> None:
        """End a pause, if there is one; raises `StateUnusable`."""
        await self._remove(znodes.ATTACH_PAUSED)

    async def paused(self) -> str:
        """Return the reason of the pause, or why it cannot be read; "" if not paused."""
        try:
            text = await self._text(znodes.ATTACH_PAUSED)
        except StateUnusable as error:
            return str(error)
        return "" if text is None else text or "paused"

    async def moves(self) -> str | None:
        """Return the text that `keep_moves` stored last, None if none; raises `StateUnusable`."""
        return await self._text(znodes.ATTACH_MOVES)

    async def keep_moves(self, text: str) -> None:
        """Store the recent moves; raises `StateUnusable`."""
        await self._write(znodes.ATTACH_MOVES, text)

    @property
    def where_course(self) -> str:
        """The node of the course of the balance."""
        return znodes.ATTACH_COURSE

    async def course(self) -> str | None:
        """Return the text that `keep_course` stored last, None if none; raises `StateUnusable`."""
        return await self._text(znodes.ATTACH_COURSE)

    async def keep_course(self, text: str) -> None:
        """Store the course of the balance; raises `StateUnusable`."""
        await self._write(znodes.ATTACH_COURSE, text)

    async def _text(self, path: str) -> str | None:
        with _usable(path, "read"):
            node = await self.coordination.get(path)
        return None if node is None else node.data.decode("utf-8", errors="replace")

    async def _write(self, path: str, text: str) -> None:
        with _usable(path, "written"):
            try:
                await self.coordination.create(path, text.encode())
            except NodeExists:
                await self.coordination.set(path, text.encode())

    async def _remove(self, path: str) -> None:
        with _usable(path, "removed"):
            try:
                await self.coordination.delete(path)
            except NodeMissing:
                return


@contextmanager
def _usable(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except CoordinationError as error:
        why = str(error) or type(error).__name__
        raise StateUnusable(f"{path}: {why}; expected a node that can be {what}") from None
