"""Bytes that came and were not handed to the parser yet, and where the next head ends in them."""

from typing import Final

from loadmanager.adapters.http.replies import Refused

_END: Final = b"\r\n\r\n"
_CR: Final = 0x0D
_METHODS_BEGIN_WITH: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def is_whole_request(data: bytes) -> bool:
    """Return whether ``data`` can be read only as one head, from first to last byte.

    A bare line feed ends a line for some parsers; data with one is never ours to judge.
    """
    return (
        data.endswith(_END) and data.count(_END) == 1 and data.count(b"\n") == data.count(b"\r\n")
    )


class Heads:
    """What one connection has sent ahead.

    The parser gets a head only once it is whole: it would keep each header twice, and has
    no limit for all of them together. What cannot be a head at all it gets at once, to
    say why.
    """

    __slots__ = ("_bytes", "_max_bytes", "_searched")

    def __init__(self, max_bytes: int) -> None:
        self._bytes = bytearray()
        self._max_bytes = max_bytes
        self._searched = 0

    def __len__(self) -> int:
        """Return how many bytes are kept."""
        return len(self._bytes)

    def add(self, data: bytes) -> None:
        """Keep more."""
        self._bytes += data

    def head_bytes(self) -> int:
        """Return how many bytes the parser may have now: a whole head, or what is none; else 0.

        Raises:
            Refused: the head is longer than allowed (431).
        """
        kept = self._bytes
        if not self._searched and kept.startswith((b"\r", b"\n")):
            # Empty lines before a request line mean nothing.
            del kept[: len(kept) - len(kept.lstrip(b"\r\n"))]
        if kept and kept[0] not in _METHODS_BEGIN_WITH:
            return len(kept)
        found = kept.find(_END, max(0, self._searched - len(_END) + 1))
        length = found + len(_END) if found >= 0 else 0
        if max(length, 0 if length else len(kept)) > self._max_bytes:
            raise Refused(431, f"the head of the request is longer than {self._max_bytes} bytes")
        if not length and self._has_bare_line_feed():
            return len(kept)
        if not length:
            self._searched = len(kept)
        return length

    def take(self, count: int) -> bytes:
        """Return the first bytes, and keep the rest."""
        self._searched = 0
        if count >= len(self._bytes):
            taken, self._bytes = bytes(self._bytes), bytearray()
            return taken
        taken = bytes(memoryview(self._bytes)[:count])
        del self._bytes[:count]
        return taken

    def _has_bare_line_feed(self) -> bool:
        """Return whether what was not searched yet has a line feed without its carriage return."""
        start = self._searched
        if start and self._bytes[start - 1] == _CR:
            start -= 1
        return self._bytes.count(b"\n", start) != self._bytes.count(b"\r\n", start)
