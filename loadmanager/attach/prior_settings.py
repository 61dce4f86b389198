"""Settings of Pulsar's own balancer from before it was switched off, and whether moves are paused.

Neither may be lost in a crash, so both are on disk. The prior settings are written before
anything is changed, and removed when everything is restored. The lock beside them is held
while a controller uses this state folder.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

from loadmanager.core.errors import LoadManagerError

_FORMAT: Final = 1


class StateUnusable(LoadManagerError):
    """The state folder cannot be used; the message says which file, why, what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorSettings:
    """Settings from before the first change.

    Attributes:
        dynamic: the dynamic value of each setting, None if it was not overridden.
        effective: the value that all brokers ran with, "" if they differed or reported none.
    """

    dynamic: Mapping[str, str | None]
    effective: Mapping[str, str]


class State(Protocol):
    """Storage for what must outlive a controller of one cluster; all raise `StateUnusable`."""

    @property
    def where(self) -> str:
        """The place of the prior settings, for messages."""

    @property
    def where_moves(self) -> str:
        """The place of the recent moves."""

    async def read(self) -> PriorSettings | None:
        """Return the prior settings, None if none are stored."""

    async def write(self, prior: PriorSettings) -> None:
        """Store the prior settings."""

    async def remove(self) -> None:
        """Remove the prior settings."""

    async def pause(self, why: str) -> None:
        """Stop all moves until `resume`."""

    async def resume(self) -> None:
        """End a pause, if there is one."""

    async def paused(self) -> str:
        """Return the reason of the pause, "" if moves are not paused."""

    async def moves(self) -> str | None:
        """Return the text that `keep_moves` stored last, None if there is none."""

    async def keep_moves(self, text: str) -> None:
        """Store the recent moves; `remove` does not remove them."""

    @property
    def where_course(self) -> str:
        """The place of the course of the balance."""

    async def course(self) -> str | None:
        """Return the text that `keep_course` stored last, None if there is none."""

    async def keep_course(self, text: str) -> None:
        """Store the course of the balance; `remove` does not remove it."""


@dataclass(frozen=True, slots=True)
class StateFile:
    """The `State` of one cluster in a folder: the file of the prior settings, and others beside it.

    One exists while moves are paused, one has the recent moves, one the course of the balance.
    """

    path: Path

    @property
    def where(self) -> str:
        """The file of the prior settings."""
        return str(self.path)

    @property
    def where_moves(self) -> str:
        """The file of the recent moves."""
        return str(self._moves)

    @property
    def _pause(self) -> Path:
        return self.path.with_suffix(".paused")

    @property
    def _moves(self) -> Path:
        return self.path.with_suffix(".moves")

    async def read(self) -> PriorSettings | None:
        """Return the prior settings, None if none are stored.

        Raises:
            StateUnusable: the file cannot be read, or was not written by `write`.
        """
        text = _read(self.path)
        return None if text is None else prior_of(text, self.where)

    async def write(self, prior: PriorSettings) -> None:
        """Store the prior settings, so that they survive a crash of this machine.

        Raises:
            StateUnusable: the file cannot be written.
        """
        _write(self.path, text_of(prior))

    async def remove(self) -> None:
        """Remove the prior settings.

        Raises:
            StateUnusable: the file cannot be removed.
        """
        _remove(self.path)

    async def pause(self, why: str) -> None:
        """Stop all moves until `resume`.

        Raises:
            StateUnusable: the file cannot be written.
        """
        _write(self._pause, why)

    async def resume(self) -> None:
        """End a pause, if there is one; raises as `pause`."""
        _remove(self._pause)

    async def paused(self) -> str:
        """Return the reason of the pause, "" if moves are not paused.

        Raises:
            StateUnusable: the file cannot be read.
        """
        text = _read(self._pause)
        return "" if text is None else text.strip() or "paused"

    async def moves(self) -> str | None:
        """Return the text that `keep_moves` stored last, None if there is none.

        Raises:
            StateUnusable: the file cannot be read.
        """
        return _read(self._moves)

    async def keep_moves(self, text: str) -> None:
        """Store the recent moves, so that they survive a crash of this machine.

        Raises:
            StateUnusable: the file cannot be written.
        """
        _write(self._moves, text)

    @property
    def where_course(self) -> str:
        """The file of the course of the balance."""
        return str(self.path.with_suffix(".course"))

    async def course(self) -> str | None:
        """Return the text that `keep_course` stored last, None if none; raises `StateUnusable`."""
        return _read(Path(self.where_course))

    async def keep_course(self, text: str) -> None:
        """Store the course of the balance; raises `StateUnusable`."""
        _write(Path(self.where_course), text)


def state_file(folder: Path, cluster: str) -> StateFile:
    """Return the state of a cluster in a folder, which is created if it is missing.

    Raises:
        StateUnusable: the folder cannot be created.
    """
    path = folder / f"attach-{quote(cluster, safe='')}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None
    return StateFile(path)


@contextmanager
def locked_state(folder: Path, cluster: str) -> Iterator[StateFile]:
    """Hold the lock of a cluster's state; the kernel releases it when the process ends.

    Raises:
        StateUnusable: the folder cannot be written, or another controller holds the lock.
    """
    state = state_file(folder, cluster)
    lock = state.path.with_suffix(".lock")
    try:
        held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _unwritable(lock, error) from None
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


def text_of(prior: PriorSettings) -> str:
    """Return settings as JSON text, which `prior_of` parses."""
    return json.dumps({"format": _FORMAT, "dynamic": prior.dynamic, "effective": prior.effective})


def prior_of(text: str, where: str) -> PriorSettings:
    """Return the settings in a text by `text_of`.

    Raises:
        StateUnusable: the text is not in that format.
    """
    try:
        return _parsed(json.loads(text))
    except (ValueError, RecursionError):
        raise StateUnusable(
            f"{where}: expected the settings that attach --balance found; see with "
            "pulsar-admin brokers get-all-dynamic-config what is set, then remove it"
        ) from None


def _parsed(content: Any) -> PriorSettings:
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError
    dynamic, effective = content.get("dynamic"), content.get("effective")
    if not isinstance(dynamic, dict) or not isinstance(effective, dict):
        raise ValueError  # noqa: TRY004 - the file's content is at fault, as above
    if not all(value is None or isinstance(value, str) for value in dynamic.values()):
        raise ValueError
    return PriorSettings(
        dynamic=dynamic, effective={key: str(value) for key, value in effective.items()}
    )


def _read(path: Path) -> str | None:
    """Return the text of a file, None if it does not exist."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StateUnusable(f"{path}: {error}; expected a file that can be read") from None


def _write(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from None


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
        _sync(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> StateUnusable:
    return StateUnusable(
        f"{path}: {error.strerror or error}; expected a folder that can be written (--state-dir)"
    )


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
