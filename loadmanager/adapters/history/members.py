"""Lines as gzip members: each can be read whatever becomes of the file after it."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

_GZIP = 31
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Member:
    """Some lines of one hour, compressed. ``first_seq`` is that of the first line."""

    hour: int
    first_seq: int
    lines: int
    data: bytes


def compressed(lines: list[bytes], level: int) -> bytes:
    """Return lines as one gzip member."""
    return zlib.compress(b"".join(lines), level, wbits=_GZIP)


def whole_bytes(chunks: Iterator[bytes]) -> int:
    """Return how many bytes of a file, read in ``chunks``, are whole members of whole lines.

    What follows is half a member, or, after a power cut, no member at all.
    """
    good, position, last = 0, 0, b""
    member = zlib.decompressobj(_GZIP)
    for chunk in chunks:
        rest = chunk
        while rest:
            try:
                last = member.decompress(rest)[-1:] or last
            except zlib.error:
                return good
            position += len(rest) - len(member.unused_data)
            rest = member.unused_data
            if not member.eof:
                break
            if last != b"\n":
                return good
            good, last = position, b""
            member = zlib.decompressobj(_GZIP)
    return good
