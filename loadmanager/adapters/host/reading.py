from pathlib import Path

from loadmanager.core.errors import LoadManagerError


class Unreadable(LoadManagerError):
    """A counter or limit cannot be read. The usage of its resource is unknown for now."""

    def __init__(self, where: Path | str, why: str) -> None:
        super().__init__(f"{where}: {why}")


def read_text(path: Path) -> str:
    """Raises `Unreadable`: also for EINVAL, as for the speed of a virtual network interface."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise Unreadable(path, error.strerror or type(error).__name__) from error


def is_there(path: Path) -> bool:
    """Return whether a file or folder exists; False also without permission to look."""
    try:
        return path.exists()
    except OSError:
        return False


def read_if_present(path: Path) -> str | None:
    """Raises `Unreadable`: it exists, but cannot be read."""
    return read_text(path) if is_there(path) else None


def read_int(path: Path) -> int:
    return as_int(read_text(path), path)


def as_int(text: str, path: Path) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise Unreadable(path, f"{text[:40]!r} is no whole number") from error


def read_entry(path: Path, name: str) -> int:
    """Raises `Unreadable`: the file cannot be read or has no such line."""
    for line in read_text(path).splitlines():
        key, _, number = line.partition(" ")
        if key == name:
            return as_int(number, path)
    raise Unreadable(path, f"has no line {name}")


def count_cpus(text: str, path: Path) -> int | None:
    """Count a list such as ``0-3,8``, None if empty. Raises `Unreadable`: it is no such list."""
    total = 0
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        total += as_int(last or first, path) - as_int(first, path) + 1
    return total or None
