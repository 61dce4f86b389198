"""What Pulsar's own balancer was set to before we switched it off, and whether people pause us.

A crash must not lose either, so they are on disk. The prior settings are there before
anything is changed, and go when all is as it was. The lock beside them says that a
controller of this state folder is at work.
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
    """What was there before.

    Attributes:
        dynamic: the value of each setting that overrode the brokers' files, None where none did.
        effective: what all brokers ran with, "" where they differed or reported none.
    """

    dynamic: Mapping[str, str | None]
    effective: Mapping[str, str]


class State(Protocol):
    """Where a controller of one cluster keeps what must outlive it; all raise `StateUnusable`."""

    @property
    def where(self) -> str:
        """The place, for people."""

    @property
    def where_moves(self) -> str:
        """The place of what was moved lately."""

    async def read(self) -> PriorSettings | None:
        """Return what is kept, None for nothing."""

    async def write(self, prior: PriorSettings) -> None:
        """Keep settings."""

    async def remove(self) -> None:
        """Forget them."""

    async def pause(self, why: str) -> None:
        """Have nothing move until `resume`."""

    async def resume(self) -> None:
        """End a pause, if there is one."""

    async def paused(self) -> str:
        """Return the reason given to `pause`, "" if nothing is paused."""

    async def moves(self) -> str | None:
        """Return what `keep_moves` was given last, None for nothing."""

    async def keep_moves(self, text: str) -> None:
        """Keep what was moved lately, which outlives a restored state."""

    @property
    def where_course(self) -> str:
        """The place of how the balance went."""

    async def course(self) -> str | None:
        """Return what `keep_course` was given last, None for nothing."""

    async def keep_course(self, text: str) -> None:
        """Keep how the balance went, which outlives a restored state."""


@dataclass(frozen=True, slots=True)
class StateFile:
    """The `State` of one cluster in a folder: a file, and others beside it.

    One is there while it is paused, one has what was moved lately, one how the balance went.
    """

    path: Path

    @property
    def where(self) -> str:
        """The file of the prior settings."""
        return str(self.path)

    @property
    def where_moves(self) -> str:
        """The file of what was moved lately."""
        return str(self._moves)

    @property
    def _pause(self) -> Path:
        return self.path.with_suffix(".paused")

    @property
    def _moves(self) -> Path:
        return self.path.with_suffix(".moves")

    async def read(self) -> PriorSettings | None:
        """Return what is kept, None for nothing.

        Raises:
            StateUnusable: it cannot be read, or is not what this wrote.
        """
        text = _read(self.path)
        return None if text is None else prior_of(text, self.where)

    async def write(self, prior: PriorSettings) -> None:
        """Keep settings, so that they outlive a crash of this machine.

        Raises:
            StateUnusable: they cannot be written.
        """
        _write(self.path, text_of(prior))

    async def remove(self) -> None:
        """Forget them.

        Raises:
            StateUnusable: the file cannot be removed.
        """
        _remove(self.path)

    async def pause(self, why: str) -> None:
        """Have nothing move until `resume`.

        Raises:
            StateUnusable: the file cannot be written.
        """
        _write(self._pause, why)

    async def resume(self) -> None:
        """End a pause, if there is one; raises as `pause`."""
        _remove(self._pause)

    async def paused(self) -> str:
        """Return the reason given to `pause`, "" if nothing is paused.

        Raises:
            StateUnusable: the file cannot be read.
        """
        text = _read(self._pause)
        return "" if text is None else text.strip() or "paused"

    async def moves(self) -> str | None:
        """Return what `keep_moves` was given last, None for nothing.

        Raises:
            StateUnusable: the file cannot be read.
        """
        return _read(self._moves)

    async def keep_moves(self, text: str) -> None:
        """Keep what was moved lately, so that it outlives a crash of this machine.

        Raises:
            StateUnusable: the file cannot be written.
        """
        _write(self._moves, text)

    @property
    def where_course(self) -> str:
        """The file of how the balance went."""
        return str(self.path.with_suffix(".course"))

    async def course(self) -> str | None:
        """Return what `keep_course` was given last, None for nothing; raises `StateUnusable`."""
        return _read(Path(self.where_course))

    async def keep_course(self, text: str) -> None:
        """Keep how the balance went; raises `StateUnusable`."""
        _write(Path(self.where_course), text)


def state_file(folder: Path, cluster: str) -> StateFile:
    """Return where the state of a cluster is; the folder is made if it is missing.

    Raises:
        StateUnusable: the folder cannot be made.
    """
    path = folder / f"attach-{quote(cluster, safe='')}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None
    return StateFile(path)


@contextmanager
def locked_state(folder: Path, cluster: str) -> Iterator[StateFile]:
    """Hold the state of a cluster; the lock ends with the process, however that ends.

    Raises:
        StateUnusable: the folder cannot be written, or another controller holds it.
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
    """Return settings as `prior_of` reads them."""
    return json.dumps({"format": _FORMAT, "dynamic": prior.dynamic, "effective": prior.effective})


def prior_of(text: str, where: str) -> PriorSettings:
    """Return the settings in a text that `text_of` made.

    Raises:
        StateUnusable: it is none.
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
    """Return the text of a file, None if there is none."""
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
