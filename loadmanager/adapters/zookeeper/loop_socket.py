import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from typing import Final

from kazoo.exceptions import ConnectionDropped

READ_BYTES: Final = 262_144
"""The most that is read at once, so that a long answer leaves turns to other work. More than a
record of TLS has: of a record that was read in part, the rest would not make the socket readable.
"""

LARGEST_ANSWER_BYTES: Final = 10 * 2**20
"""The longest answer that is read: Pulsar's own ``jute.maxbuffer``, ten times ZooKeeper's.

Servers do not apply theirs to lists of children, which have a megabyte for 40,000 bundles.
"""

_LENGTH: Final = struct.Struct("!i")
NOT_YET: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def out_of_bounds(length: int) -> str:
    return f"an answer of {length} bytes; expected 0 to {LARGEST_ANSWER_BYTES}"


class LoopSocket:
    """Reads and writes frames, each behind its length in four bytes, without ever waiting.

    ``connected`` does not block, and is not closed here. ``loop`` calls ``received`` with each
    frame, and ``ended`` once with the reason. ``lock`` is held in each call: another thread may
    write.
    """

    def __init__(
        self,
        connected: socket.socket,
        loop: asyncio.AbstractEventLoop,
        lock: threading.RLock,
        received: Callable[[bytes], None],
        ended: Callable[[ConnectionDropped], None],
    ) -> None:
        self._socket = connected
        self._loop = loop
        self._lock = lock
        self._received = received
        self._ended = ended
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._open = True
        loop.add_reader(connected, self._read)

    def write(self, data: bytes) -> None:
        """Send, and keep what the socket does not take now. Any thread that holds the lock."""
        if not self._outgoing:
            data = data[self._send(data) :]
            if data:
                # A closed loop sends nothing more.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._await_room)
        self._outgoing += data

    def close(self) -> None:
        """Leave the socket alone from now on. Called on the loop."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        with self._lock:
            broken = self._fill()
            self._deliver()
            if broken and self._open:
                self._ended(broken)

    def _fill(self) -> ConnectionDropped | None:
        """Read what is there; return why there will be no more."""
        try:
            part = self._socket.recv(READ_BYTES)
            self._incoming += part
        except NOT_YET:
            return None
        except MemoryError:  # What is there would be reported again at once.
            return ConnectionDropped("socket connection error: no memory is left")
        except OSError as error:
            return ConnectionDropped(f"socket connection error: {error.strerror or error}")
        return None if part else ConnectionDropped("the server closed the connection")

    def _deliver(self) -> None:
        while self._open and len(self._incoming) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._incoming)
            if not 0 <= length <= LARGEST_ANSWER_BYTES:
                self._ended(ConnectionDropped(out_of_bounds(length)))
                return
            end = _LENGTH.size + length
            if len(self._incoming) < end:
                return
            frame = bytes(self._incoming[_LENGTH.size : end])
            del self._incoming[:end]
            self._received(frame)

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except NOT_YET:
            return 0
        except OSError:
            return len(data)  # Reading reports the broken connection.

    def _await_room(self) -> None:
        if self._open:
            self._loop.add_writer(self._socket, self._write_rest)

    def _write_rest(self) -> None:
        with self._lock:
            del self._outgoing[: self._send(self._outgoing)]
            if not self._outgoing:
                self._loop.remove_writer(self._socket)
