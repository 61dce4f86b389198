"""What must outlive a controller of one cluster, as texts in files or in ZooKeeper.

These are the settings of Pulsar's own balancer from before it was switched off, whether moves are
paused, the recent moves, and the course of the balance. The prior settings are stored before
anything is changed, and removed when everything is restored.
"""

import fcntl
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from pydantic import BaseModel

from loadmanager.core import znodes
from loadmanager.core.errors import LoadManagerError
from loadmanager.ports.coordination import Coordination, CoordinationError, NodeExists, NodeMissing


class StateUnusable(LoadManagerError):
    """The state cannot be used; the message says which file or node, why, what was expected."""


class PriorSettings(BaseModel, frozen=True):
    """A dynamic value is None if not overridden; ``effective`` is what all brokers ran with."""

    format: Literal[1] = 1
    dynamic: dict[str, str | None]
    effective: dict[str, str]


class Part(Enum):
    PRIOR = "json", znodes.ATTACH_PRIOR
    PAUSED = "paused", znodes.ATTACH_PAUSED
    MOVES = "moves", znodes.ATTACH_MOVES
    COURSE = "course", znodes.ATTACH_COURSE


class State(ABC):
    """The state of a controller of one cluster; all methods raise `StateUnusable`."""

    @abstractmethod
    def where(self, part: Part = Part.PRIOR) -> str: ...

    @abstractmethod
    async def text(self, part: Part) -> str | None: ...

    @abstractmethod
    async def keep(self, part: Part, text: str) -> None:
        """Store a text so that it survives a crash."""

    @abstractmethod
    async def remove(self, part: Part = Part.PRIOR) -> None: ...

    async def read(self) -> PriorSettings | None:
        text = await self.text(Part.PRIOR)
        if text is None:
            return None
        try:
            prior = PriorSettings.model_validate_json(text)
        except ValueError:
            prior = None
        if prior is None or "format" not in prior.model_fields_set:
            raise StateUnusable(
                f"{self.where()}: expected the settings that attach --balance found; see with "
                "pulsar-admin brokers get-all-dynamic-config what is set, then remove it"
            )
        return prior

    async def write(self, prior: PriorSettings) -> None:
        await self.keep(Part.PRIOR, prior.model_dump_json())

    async def paused(self) -> str:
        text = await self.text(Part.PAUSED)
        return "" if text is None else text.strip() or "paused"

    async def pause(self, why: str) -> None:
        await self.keep(Part.PAUSED, why)

    async def resume(self) -> None:
        await self.remove(Part.PAUSED)


@dataclass(frozen=True, slots=True)
class StateFile(State):
    """The state in a folder: ``path`` is the file of the prior settings, the others beside it."""

    path: Path

    def where(self, part: Part = Part.PRIOR) -> str:
        return str(self._path(part))

    def _path(self, part: Part) -> Path:
        return self.path.with_suffix(f".{part.value[0]}")

    async def text(self, part: Part) -> str | None:
        path = self._path(part)
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StateUnusable(f"{path}: {error}; expected a file that can be read") from None

    async def keep(self, part: Part, text: str) -> None:
        """Replace a file, so that one of the two contents survives a crash of this machine."""
        path = self._path(part)
        new = path.with_name(f"{path.name}.new")
        with _writable(path):
            with new.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
            _sync(path.parent)

    async def remove(self, part: Part = Part.PRIOR) -> None:
        path = self._path(part)
        with _writable(path):
            path.unlink(missing_ok=True)
            _sync(path.parent)


def state_file(folder: Path, cluster: str) -> StateFile:
    """Create the folder if it is missing. Raises `StateUnusable`: it cannot be created."""
    path = folder / f"attach-{quote(cluster, safe='')}.json"
    with _writable(path):
        folder.mkdir(parents=True, exist_ok=True)
    return StateFile(path)


@contextmanager
def locked_state(folder: Path, cluster: str) -> Iterator[StateFile]:
    """Hold the lock of a cluster's state; the kernel releases it when the process ends.

    Raises `StateUnusable`: the folder cannot be written, or another controller holds the lock.
    """
    state = state_file(folder, cluster)
    lock = state.path.with_suffix(".lock")
    with _writable(lock):
        held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StateUnusable(
                f"{lock}: another loadmanager attach acts on {cluster}; expected to be the only one"
            ) from None
        yield state
    finally:
        os.close(held)


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise StateUnusable(
            f"{path}: {why}; expected a folder that can be written (--state-dir)"
        ) from None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class SharedState(State):
    coordination: Coordination

    def where(self, part: Part = Part.PRIOR) -> str:
        return part.value[1]

    async def paused(self) -> str:
        """Return also why it is unknown whether moves are paused: nothing moves meanwhile."""
        try:
            return await State.paused(self)
        except StateUnusable as error:
            return str(error)

    async def text(self, part: Part) -> str | None:
        path = self.where(part)
        with _usable(path, "read"):
            node = await self.coordination.get(path)
        return None if node is None else node.data.decode("utf-8", errors="replace")

    async def keep(self, part: Part, text: str) -> None:
        path = self.where(part)
        with _usable(path, "written"):
            try:
                await self.coordination.create(path, text.encode())
            except NodeExists:
                await self.coordination.set(path, text.encode())

    async def remove(self, part: Part = Part.PRIOR) -> None:
        path = self.where(part)
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
