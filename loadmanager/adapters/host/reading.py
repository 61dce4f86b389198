"""Reading the small files in which the kernel reports its counters."""

from pathlib import Path

from loadmanager.core.errors import LoadManagerError


class Unreadable(LoadManagerError):
    """A counter or limit cannot be read. The resource it belongs to is unknown for now.

    Args:
        where: the file, or what else was asked.
        why: what happened instead.
    """

    def __init__(self, where: Path | str, why: str) -> None:
        super().__init__(f"{where}: {why}")


def read_text(path: Path) -> str:
    """Return the file's text without the line end.

    Raises:
        Unreadable: there is no such file, or reading it fails; the speed of a virtual
            network interface, for one, answers EINVAL.
    """
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise Unreadable(path, error.strerror or type(error).__name__) from error


def is_there(path: Path) -> bool:
    """Return whether there is such a file or folder; False also without the right to look."""
    try:
        return path.exists()
    except OSError:
        return False


def read_if_present(path: Path) -> str | None:
    """Return the file's text, or None where the kernel has no such file.

    Raises:
        Unreadable: the file is there, but reading it fails.
    """
    return read_text(path) if is_there(path) else None


def read_int(path: Path) -> int:
    """Return the one number in a file.

    Raises:
        Unreadable: it cannot be read, or is no number.
    """
    return as_int(read_text(path), path)


def as_int(text: str, path: Path) -> int:
    """Return a number read from ``path``.

    Raises:
        Unreadable: it is no number.
    """
    try:
        return int(text)
    except ValueError as error:
        raise Unreadable(path, f"{text[:40]!r} is no whole number") from error


def read_entry(path: Path, name: str) -> int:
    """Return one number of a file with lines of ``name number``.

    Raises:
        Unreadable: the file cannot be read or has no such line.
    """
    for line in read_text(path).splitlines():
        key, _, number = line.partition(" ")
        if key == name:
            return as_int(number, path)
    raise Unreadable(path, f"has no line {name}")


def count_cpus(text: str, path: Path) -> int | None:
    """Return how many CPUs a list such as ``0-3,8`` names, None for an empty list.

    Raises:
        Unreadable: it is no such list.
    """
    total = 0
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        total += as_int(last or first, path) - as_int(first, path) + 1
    return total or None
