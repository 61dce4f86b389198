"""Decompresses a file of history and splits it into lines, as far as it can be read."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

LONGEST_LINE_BYTES: Final = 64 << 20
"""Far above the length of any line that a sidecar writes; protects the memory."""

_CHUNK_BYTES: Final = 64 << 10
"""Small enough for the decompressed chunk to fit into memory: gzip reaches at most 1000 to 1."""

_GZIP: Final = 31


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its line feed; ``fault`` says why it cannot be read."""

    content: bytes
    fault: str | None = None


class _Damaged(Exception):
    """The file is not gzip from here on; ``unpacked`` was decompressed before the fault."""

    def __init__(self, reason: str, unpacked: bytes = b"") -> None:
        super().__init__(reason)
        self.unpacked = unpacked


def lines_of(packed: memoryview) -> Iterator[Line]:
    """Yield the lines of a file; for a damaged file, the last line has a fault.

    The rest after the last line feed is a line as well.
    """
    rest = b""
    skipping = False
    chunks = _unpacked(packed)
    damage: str | None = None
    while damage is None:
        try:
            chunk = next(chunks)
        except StopIteration:
            break
        except _Damaged as damaged:
            chunk, damage = damaged.unpacked, str(damaged)
        *whole, rest = (rest + chunk).split(b"\n")
        if whole and skipping:
            whole, skipping = whole[1:], False
        for content in whole:
            yield Line(content)
        if len(rest) > LONGEST_LINE_BYTES or skipping:
            if not skipping:
                yield Line(rest, f"a line of more than {LONGEST_LINE_BYTES} bytes")
            rest, skipping = b"", True
    if damage is not None:
        yield Line(rest, damage)
    elif rest:
        yield Line(rest)


def _unpacked(packed: memoryview) -> Iterator[bytes]:
    size = len(packed)
    if size == 0:
        raise _Damaged("the file is empty; expected gzip")
    position = 0
    while position < size:
        decoder = zlib.decompressobj(wbits=_GZIP)
        while not decoder.eof:
            chunk = packed[position : position + _CHUNK_BYTES]
            if not chunk:
                raise _Damaged(f"the file ends within a gzip member, after {size} bytes")
            before = decoder.copy()
            try:
                yield decoder.decompress(chunk)
            except zlib.error as error:
                text = f"the file is damaged between bytes {position} and {position + len(chunk)}"
                raise _Damaged(
                    f"{text} of {size}: {error}; expected gzip", _decompressed_prefix(before, chunk)
                ) from None
            position += len(chunk) - len(decoder.unused_data)
        if not any(packed[position : position + _CHUNK_BYTES]):
            # Zeros after the last member are padding.
            return


def _decompressed_prefix(decoder: "zlib._Decompress", chunk: memoryview) -> bytes:
    found = bytearray()
    try:
        for position in range(len(chunk)):
            found += decoder.decompress(chunk[position : position + 1])
    except zlib.error:
        pass
    return bytes(found)
