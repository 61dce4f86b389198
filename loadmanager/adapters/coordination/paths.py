import re
from collections.abc import Iterator
from typing import Final

from loadmanager.core.errors import InvalidName

_REFUSED: Final = re.compile("[\\u0000-\\u001f\\u007f-\\u009f\\ud800-\\uf8ff\\ufff0-\\uffff]")
"""The characters that ZooKeeper does not accept in a path."""


def check_path(path: str) -> str:
    """Return the path if ZooKeeper accepts it, else raise `InvalidName`."""
    parts = path.split("/")[1:]
    if path == "/":
        return path
    if not path.startswith("/") or {"", ".", ".."} & set(parts) or _REFUSED.search(path):
        raise InvalidName("znode path", path, "/name/name without empty or relative parts")
    return path


def parent_of(path: str) -> str:
    """Return the path of the parent; the root is its own parent."""
    return path.rpartition("/")[0] or "/"


def ancestry(path: str) -> Iterator[str]:
    """Yield the ancestors of a path and the path itself, topmost first, without the root."""
    parts = path.split("/")[1:]
    for length in range(1, len(parts) + 1):
        if parts[length - 1]:
            yield "/" + "/".join(parts[:length])


def below(chroot: str, path: str) -> str:
    """Return the complete path of ``path`` below a chroot ("" for none)."""
    check_path(path)
    if not chroot:
        return path
    return chroot if path == "/" else chroot + path
