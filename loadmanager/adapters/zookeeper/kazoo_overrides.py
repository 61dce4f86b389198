"""kazoo's client and connection, changed so that no request is applied at the wrong time.

This file is the only one that uses more than kazoo's documented interface, which has no hooks
for this; `tests/zookeeper/test_traps.py` fails if a new kazoo release breaks it. It changes:

- kazoo queues requests while the connection is broken and sends them after it is back,
  perhaps in another session. Here a request is refused unless the event loop has been notified
  of the connection that is open now (`GatedClient.admit`).
- kazoo reports a connection before it has logged in. Here a connection is reported after the
  login.
- kazoo does not report the granted session timeout.
- kazoo cannot set watches again after a reconnect: it drops them, so all would be read again.
- kazoo's pauses between attempts do not depend on the session timeout.
- kazoo waits up to a whole session timeout for one server to accept a connection.
- kazoo wakes three threads for each request, which costs more than ten times what the request
  does. Here its thread connects, logs in, waits for the end of the connection, and sends pings
  where the event loop is blocked; the loop sends and receives all else (`LoopConnection.carry`).
- kazoo's TLS trusts every public authority and does not verify host names.

Methods named with an underscore run on kazoo's thread, if they do not say otherwise.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    ConnectionLoss,
    KazooException,
    SessionExpiredError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.handlers.utils import selector_select
from kazoo.protocol.connection import (
    CLOSE_RESPONSE,
    EVENT_TYPE_MAP,
    PING_XID,
    WATCH_XID,
    ConnectionHandler,
)
from kazoo.protocol.serialization import (
    Connect,
    GetChildren,
    GetData,
    PingInstance,
    ReplyHeader,
    Watch,
    int_struct,
    long_struct,
    write_string,
)
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

from loadmanager.adapters.zookeeper.options import SHORTEST_PAUSE_S, ZooKeeperOptions
from loadmanager.ports.coordination import ArmedTrigger, CoordinationError, ReadKind, Trigger

KAZOO_LOG: Final = logging.getLogger("loadmanager.kazoo")


READ_BYTES: Final = 262_144
"""The most that is read at once, so that a long answer leaves turns to other work. More than a
record of TLS has: of a record that was read in part, the rest would not make the socket readable.
"""

LARGEST_ANSWER_BYTES: Final = 10 * 2**20
"""The longest answer that is read: Pulsar's own ``jute.maxbuffer``, ten times ZooKeeper's.

Servers do not apply theirs to lists of children, which have a megabyte for 40,000 bundles.
"""

MOST_CHILDREN: Final = 400_000
_LARGEST_OTHER_BYTES: Final = LARGEST_ANSWER_BYTES // 4
"""Of answers that are neither content nor children: kazoo takes a second for a million results."""

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
        while self._open and len(self._incoming) >= int_struct.size:
            (length,) = int_struct.unpack_from(self._incoming)
            if not 0 <= length <= LARGEST_ANSWER_BYTES:
                self._ended(ConnectionDropped(out_of_bounds(length)))
                return
            end = int_struct.size + length
            if len(self._incoming) < end:
                return
            frame = bytes(self._incoming[int_struct.size : end])
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


# At DEBUG kazoo logs each request with its content, including credentials.
KAZOO_LOG.setLevel(logging.WARNING)

_GREATEST_XID: Final = 2**31 - 1
_UNREADABLE: Final = (
    KazooException,
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    struct.error,
)
"""What kazoo raises for answers that are not as they should be."""


class LoopConnection(ConnectionHandler):  # type: ignore[misc]  # kazoo ships no types
    """kazoo's connection, which reports its login and the granted session timeout.

    ``loop`` reads and writes; ``gate`` is held in each change of the connection and of the client's
    pending requests. ``connect_timeout_s`` is for the first answer of a server. ``established`` is
    called on kazoo's thread after each login with the granted session timeout in seconds.
    """

    def __init__(
        self,
        client: Any,
        *,
        loop: asyncio.AbstractEventLoop,
        gate: threading.RLock,
        connect_timeout_s: float,
        retry: KazooRetry,
        sasl_options: dict[str, str] | None,
        established: Callable[[float], None],
    ) -> None:
        super().__init__(client, retry, logger=KAZOO_LOG, sasl_options=sasl_options)
        self.handler.wait_between_requests = self._wait_between_requests
        self._loop = loop
        self._gate = gate
        self._connect_timeout_s = connect_timeout_s
        self._established = established
        self._carried: LoopSocket | None = None
        self._end: ConnectionDropped | int | None = None
        self._frame = b""
        self._xid: int = 0
        self._xid_at_ping = 0

    def carry(self) -> None:
        """Read and write on the loop from now on. Called on the loop; the caller holds the gate."""
        self._carried = LoopSocket(
            self._socket, self._loop, self._gate, self._read_frame, self.give_up
        )

    def send(self, request: Any, answer: Any) -> None:
        """Send a request on a connection that is carried. The caller holds the gate."""
        self._xid = self._xid % _GREATEST_XID + 1
        self._submit(request, None, self._xid)
        self.client._pending.append((request, answer, self._xid))

    def give_up(self, reason: ConnectionDropped | int) -> None:
        """Leave the connection to kazoo's thread, which ends it. Called on the loop."""
        with self._gate:
            if self._carried is not None:
                self._carried.close()
            self._end = reason
            self._write_sock.send(b"\0")

    def _read_frame(self, frame: bytes) -> None:
        """Handle an answer or the event of a watch. Called on the loop."""
        self._frame = frame
        pending = self.client._pending
        oldest = pending[0] if pending else None
        try:
            self._require_asked(frame, *(oldest[::2] if oldest else (None, None)))
            kind = super()._read_socket(0)
        except _UNREADABLE as error:
            if oldest and oldest not in pending and oldest[1] and not oldest[1].ready():
                # Its answer has a code that kazoo does not know: it fails with the connection.
                pending.appendleft(oldest)
            self.give_up(ConnectionDropped(f"an answer that cannot be read: {error}"))
        else:
            if kind == CLOSE_RESPONSE:
                self.give_up(CLOSE_RESPONSE)

    def _require_asked(self, frame: bytes, oldest: Any, oldest_xid: int | None) -> None:
        """Raise ValueError unless a frame answers the oldest request, or is a ping or an event.

        What kazoo would parse for longer than a moment is no answer either.

        kazoo would give the answer to a request that it does not belong to. Called on the loop.
        """
        header, offset = ReplyHeader.deserialize(frame, 0)
        if header.xid == WATCH_XID:
            event, _ = Watch.deserialize(frame, offset)
            if event.type not in EVENT_TYPE_MAP.keys() - {-1}:
                raise ValueError(f"an event of type {event.type}")
        elif header.xid not in {PING_XID, oldest_xid}:
            raise ValueError(f"it is to request {header.xid}; expected {oldest_xid}")
        elif isinstance(oldest, GetChildren) and len(frame) > offset:
            (count,) = int_struct.unpack_from(frame, offset)
            if count > MOST_CHILDREN:
                raise ValueError(f"{count} children; expected at most {MOST_CHILDREN}")
        elif not isinstance(oldest, GetData) and len(frame) > _LARGEST_OTHER_BYTES:
            raise ValueError(f"{len(frame)} bytes; expected at most {_LARGEST_OTHER_BYTES}")

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        with self._gate:
            self._carried, self._end = None, None
        # kazoo could not connect with the None that it keeps of a login without a password.
        self.client._session_passwd = self.client._session_passwd or bytes(16)
        try:
            read_timeout_ms, _ = super()._connect(host, hostip, port)
        except (ConnectionDropped, AuthFailedError, SessionExpiredError):
            raise
        except _UNREADABLE as error:
            # kazoo's thread would end with a traceback.
            raise ConnectionDropped(f"a login that cannot be read: {error}") from error
        # kazoo does not expose the granted timeout, but its read timeout is 2/3 of it. One longer
        # than asked for would let pings, keepalive and leases wait for what no server grants.
        timeout_ms = min(round(read_timeout_ms * 1.5), self.client._session_timeout)
        self._established(timeout_ms / 1000)
        return timeout_ms * 2 / 3, timeout_ms / len(self.client.hosts)

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if isinstance(request, Connect):
            timeout = min(timeout, self._connect_timeout_s)
        return super()._invoke(timeout, request, xid)

    def _wait_between_requests(self, sockets: Sequence[Any], timeout: float) -> list[Any]:
        """Wait for the end of the connection, for a ping that is due, or for kazoo's ``stop``."""
        alone = self._is_alone()
        woken = list(selector_select(sockets if alone else [self._read_sock], [], [], timeout)[0])
        with self._gate:
            if self._end is not None:
                return [self._socket]
            if alone or self._is_alone():
                return woken
            if woken:
                self._read_sock.recv(1)
                if self.client._queue:
                    # `stop` has queued the request that ends the session.
                    self.send(*self.client._queue.popleft())
        return []

    def _is_alone(self) -> bool:
        """Return whether kazoo's thread has to end the session without the loop."""
        with self._gate:
            return self._carried is None and self.client._stopped.is_set()

    def _read_socket(self, read_timeout: float) -> Any:
        if isinstance(self._end, ConnectionDropped):
            raise self._end
        return self._end or super()._read_socket(read_timeout)

    def _read(self, length: int, timeout: float) -> bytes:
        """Read a part of the login; kazoo would wait anew for each byte, and for any length."""
        if not 0 <= length <= LARGEST_ANSWER_BYTES:
            raise ConnectionDropped(out_of_bounds(length))
        until_s, data = time.monotonic() + timeout, bytearray()
        while len(data) < length:
            data += super()._read(1, max(until_s - time.monotonic(), 0.0))
            with self._socket_error_handling(), contextlib.suppress(*NOT_YET):
                if len(data) < length:
                    data += self._socket.recv(min(length - len(data), READ_BYTES))
        return bytes(data)

    def _read_header(self, timeout: float) -> Any:
        if self._carried is None:
            return super()._read_header(timeout)
        header, offset = ReplyHeader.deserialize(self._frame, 0)
        return header, self._frame, offset

    def _write(self, msg: bytes, timeout: float) -> None:
        if self._carried is None:
            super()._write(msg, timeout)
        else:
            self._carried.write(msg)

    def _send_ping(self, connect_timeout: float) -> None:
        """Send a ping if the loop has sent nothing since the last one was due.

        Whether it is answered is not checked: `Keepalive` detects a dead connection sooner.
        """
        with self._gate:
            if self._xid == self._xid_at_ping:
                self._submit(PingInstance, connect_timeout, PING_XID)
            self._xid_at_ping = self._xid


class SocketHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo ships no types
    """kazoo's sockets, with the TLS and timeouts of `ZooKeeperOptions`, and callbacks at once."""

    wait_between_requests: Callable[[Sequence[Any], float], list[Any]]

    def __init__(self, options: ZooKeeperOptions) -> None:
        super().__init__()
        self._options = options

    def start(self) -> None:
        """Start no threads for callbacks; a handler that does not run calls them at once."""

    def stop(self) -> None: ...

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def create_connection(
        self, address: tuple[str, int], hostname: str = "", **_kazoo_settings: Any
    ) -> socket.socket:
        plain = socket.create_connection(address, self._options.connect_timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            context = self._options.tls_context()
            return context.wrap_socket(plain, server_hostname=hostname) if context else plain
        except CoordinationError as error:
            plain.close()
            # kazoo tries again only after OSError, and the files may be half renewed.
            raise OSError(str(error)) from error
        except OSError:
            plain.close()
            raise

    def select(
        self, rlist: Sequence[Any], wlist: Sequence[Any], xlist: Sequence[Any], timeout: float
    ) -> Any:
        """Wait for sockets. Only between requests kazoo waits for more than one."""
        if len(rlist) > 1:
            return self.wait_between_requests(rlist, timeout), [], []
        return selector_select(rlist, wlist, xlist, timeout)


Watcher = Callable[[Any], None]
"""Called on the event loop with an event of a watch, on kazoo's thread if the connection broke."""


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """An event that is reported on the event loop.

    ``generation`` counts the connections of one client. ``state`` is one of kazoo's
    ``KeeperState``: CONNECTED, CONNECTING (the connection broke), EXPIRED_SESSION, or
    AUTH_FAILED and CLOSED, after which the client cannot be used any more. ``last_zxid`` is the
    last transaction that the client has seen by then.
    """

    client: "GatedClient"
    state: str
    generation: int
    session_id: int
    session_password: bytes
    timeout_s: float
    last_zxid: int


@dataclass(frozen=True, slots=True)
class SetWatches:
    """ZooKeeper's request to set watches on a new connection; those that changed fire at once.

    A node's watch fires if it changed after the transaction ``since_zxid`` or is gone, that of a
    missing node if it exists, that of children if they changed or the node is gone.
    """

    since_zxid: int
    triggers: Sequence[ArmedTrigger]
    type: ClassVar[int] = 101

    def serialize(self) -> bytes:
        """Return its fields in ZooKeeper's encoding: the paths of each kind in a vector."""
        parts = [long_struct.pack(self.since_zxid)]
        for kind in (ReadKind.NODE, ReadKind.MISSING, ReadKind.CHILDREN):
            paths = [one.path for one in self.triggers if one.kind is kind]
            parts += [int_struct.pack(len(paths)), *map(write_string, paths)]
        return b"".join(parts)

    @classmethod
    def deserialize(cls, _buffer: bytes, _offset: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Resumption:
    """A session that a former client began. ``last_zxid`` is the last change that it saw."""

    session_id: int
    session_password: bytes
    last_zxid: int


class GatedClient(KazooClient):  # type: ignore[misc]  # kazoo ships no types
    """A kazoo client that sends a request on the connection that it was made for, or not at all.

    All methods but `end` are called on ``loop``, and so is ``report`` with each event. ``resume``
    is the session to resume; None begins a new one.
    """

    def __init__(
        self,
        options: ZooKeeperOptions,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[ClientEvent], None],
        resume: Resumption | None = None,
    ) -> None:
        self._gate = threading.RLock()
        self._loop = loop
        self._report = report
        self._generation = 0
        self._open = False
        self._admitted = 0
        self._granted_timeout_s = options.session_timeout_s
        handler = SocketHandler(options)
        super().__init__(
            hosts=options.hosts,
            timeout=options.session_timeout_s,
            handler=handler,
            client_id=(resume.session_id, resume.session_password) if resume else None,
            auth_data=options.auth_data(),
            default_acl=options.access_list(),
            connection_retry=KazooRetry(
                max_tries=-1,
                delay=min(SHORTEST_PAUSE_S, options.longest_pause_s),
                max_delay=options.longest_pause_s,
                sleep_func=handler.sleep_func,
            ),
            logger=KAZOO_LOG,
        )
        self.last_zxid = resume.last_zxid if resume else 0
        self._connection = LoopConnection(
            self,
            loop=loop,
            gate=self._gate,
            connect_timeout_s=options.connect_timeout_s,
            retry=self._conn_retry.copy(),
            sasl_options=options.sasl_options(),
            established=self._established,
        )

    def admit(self, generation: int) -> None:
        """Accept requests on this connection; called after the loop got the event."""
        with self._gate:
            # A client that was stopped before ends its session on kazoo's thread.
            if self._open and generation == self._generation and not self._stopped.is_set():
                self._admitted = generation
                self._connection.carry()

    def rearm_async(
        self,
        since_zxid: int,
        triggers: Sequence[ArmedTrigger],
        watcher: Callable[[Trigger], Watcher],
    ) -> Any:
        """Set watches again; return the answer as kazoo's own methods do.

        ``watcher`` makes of a trigger what is to be called.
        """
        answer = self.handler.async_result()
        # Before the request, because what changed is notified before the answer. kazoo's thread
        # walks through all watches only under the same lock.
        with self._gate:
            for one in triggers:
                of_children = one.kind is ReadKind.CHILDREN
                watchers = self._child_watchers if of_children else self._data_watchers
                watchers[one.path].add(watcher(one.trigger))
            self._call(SetWatches(since_zxid, triggers), answer)
        return answer

    def drop(self) -> None:
        # kazoo's own thread closes the socket: closing it here would be a race.
        with self._gate:
            if self._open:
                self._connection.give_up(ConnectionDropped("dropped"))

    def end(self) -> None:
        """End the session and the threads. Blocks, so it must not be called on the loop."""
        self.stop()
        self.close()

    def _established(self, timeout_s: float) -> None:
        with self._gate:
            self._generation += 1
            self._open = True
            self._granted_timeout_s = timeout_s
            self._report_state(KeeperState.CONNECTED)

    def _call(self, request: Any, async_object: Any) -> Any:
        with self._gate:
            if self._open and self._admitted == self._generation:
                self._connection.send(request, async_object)
                return True
        async_object.set_exception(ConnectionLoss())
        return False

    def _session_callback(self, state: str) -> None:
        # Under the lock: kazoo fails pending and queued requests in here, and none may be
        # queued between that and the closing of the gate.
        with self._gate:
            was_open = self._open
            self._open = self._open and state == KeeperState.CONNECTED
            broke = was_open and state == KeeperState.CONNECTING
            ended = state in {
                KeeperState.EXPIRED_SESSION,
                KeeperState.AUTH_FAILED,
                KeeperState.CLOSED,
            }
            if (broke or ended) and state != self._state:
                # Before the pending requests fail, so that the state is known with their errors.
                self._report_state(state)
            super()._session_callback(state)

    def _report_state(self, state: str) -> None:
        event = ClientEvent(
            self,
            state,
            self._generation,
            self._session_id or 0,
            self._session_passwd,
            self._granted_timeout_s,
            self.last_zxid,
        )
        # A loop that was closed before the client has no callbacks left.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._report, event)
