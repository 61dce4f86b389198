"""What Pulsar's own balancer was set to before we switched it off, on disk.

A crash must not lose it, so it is there before anything is changed, and goes when all is
as it was. The lock beside it says that a controller of this state folder is at work.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
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
        effective: what all brokers ran with, "" where they differed or did not tell.
    """

    dynamic: Mapping[str, str | None]
    effective: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StateFile:
    """The file of one cluster."""

    path: Path

    def read(self) -> PriorSettings | None:
        """Return what is kept, None for nothing.

        Raises:
            StateUnusable: it cannot be read, or is not what this wrote.
        """
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StateUnusable(f"{self.path}: {error}; expected a file that can be read") from None
        try:
            return _parsed(json.loads(text))
        except (ValueError, RecursionError):
            raise StateUnusable(
                f"{self.path}: expected the settings that attach --balance found; see with "
                "pulsar-admin brokers get-all-dynamic-config what is set, then remove the file"
            ) from None

    def write(self, prior: PriorSettings) -> None:
        """Keep settings, so that they outlive a crash of this machine.

        Raises:
            StateUnusable: they cannot be written.
        """
        told = {"format": _FORMAT, "dynamic": prior.dynamic, "effective": prior.effective}
        new = self.path.with_suffix(".new")
        try:
            with new.open("w", encoding="utf-8") as file:
                json.dump(told, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            _sync(self.path.parent)
        except OSError as error:
            raise _unwritable(self.path, error) from None

    def remove(self) -> None:
        """Forget them.

        Raises:
            StateUnusable: the file cannot be removed.
        """
        try:
            self.path.unlink(missing_ok=True)
            _sync(self.path.parent)
        except OSError as error:
            raise _unwritable(self.path, error) from None


@contextmanager
def locked_state(folder: Path, cluster: str) -> Iterator[StateFile]:
    """Hold the state of a cluster; the lock ends with the process, however that ends.

    Raises:
        StateUnusable: the folder cannot be written, or another controller holds it.
    """
    name = quote(cluster, safe="")
    lock = folder / f"attach-{name}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
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
        yield StateFile(folder / f"attach-{name}.json")
    finally:
        os.close(held)


def _parsed(told: Any) -> PriorSettings:
    if not isinstance(told, dict) or told.get("format") != _FORMAT:
        raise ValueError
    dynamic, effective = told.get("dynamic"), told.get("effective")
    if not isinstance(dynamic, dict) or not isinstance(effective, dict):
        raise ValueError  # noqa: TRY004 - the file's content is at fault, as above
    if not all(value is None or isinstance(value, str) for value in dynamic.values()):
        raise ValueError
    return PriorSettings(
        dynamic=dynamic, effective={key: str(value) for key, value in effective.items()}
    )


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
