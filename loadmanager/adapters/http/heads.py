"""Received bytes that the parser does not have yet, and the end of the next head in them."""

from typing import Final

from loadmanager.adapters.http.replies import Refused

_END: Final = b"\r\n\r\n"
_CR: Final = 0x0D
_METHODS_BEGIN_WITH: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def is_whole_request(data: bytes) -> bool:
    """Return whether ``data`` is exactly one head, for any parser.

    Data with a bare line feed is not, because that ends a line for some parsers.
    """
    return (
        data.endswith(_END) and data.count(_END) == 1 and data.count(b"\n") == data.count(b"\r\n")
    )


class Heads:
    """The bytes of one connection that wait for the parser.

    The parser gets a head only when it is complete, because it would keep each header twice and
    has no limit for all of them together. Bytes that cannot be a head are passed at once, so that
    the parser reports the error.
    """

    __slots__ = ("_bytes", "_max_bytes", "_searched")

    def __init__(self, max_bytes: int) -> None:
        self._bytes = bytearray()
        self._max_bytes = max_bytes
        self._searched = 0

    def __len__(self) -> int:
        return len(self._bytes)

    def add(self, data: bytes) -> None:
        self._bytes += data

    def head_bytes(self) -> int:
        """Return the number of bytes to pass now: a whole head, or an invalid one; else 0.

        Raises `Refused`: the head is longer than allowed (431).
        """
        kept = self._bytes
        if not self._searched and kept.startswith((b"\r", b"\n")):
            # Empty lines before a request line are ignored.
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
        self._searched = 0
        if count >= len(self._bytes):
            taken, self._bytes = bytes(self._bytes), bytearray()
            return taken
        taken = bytes(memoryview(self._bytes)[:count])
        del self._bytes[:count]
        return taken

    def _has_bare_line_feed(self) -> bool:
        start = self._searched
        if start and self._bytes[start - 1] == _CR:
            start -= 1
        return self._bytes.count(b"\n", start) != self._bytes.count(b"\r\n", start)
