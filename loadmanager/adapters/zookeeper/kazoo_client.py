"""kazoo, with the holes closed that would let a request be applied at the wrong time.

This is the one file that reaches behind kazoo's documented interface, for lack of hooks;
`tests/zookeeper/test_traps.py` fails if a new kazoo release breaks it. What it changes:

- kazoo queues requests while the connection is broken and sends them after it is back,
  perhaps in another session. Here a request is refused unless the loop has seen the very
  connection that is open now (`GatedClient.admit`).
- kazoo calls itself connected before it has logged in. Here a connection counts once
  the login is done.
- kazoo does not report the granted session timeout.
- kazoo's pauses between attempts know nothing of the session timeout.
- kazoo waits up to a whole session timeout for one server to accept a connection.
- kazoo makes and closes an epoll set each of the four times it waits for one request.
- kazoo's TLS trusts every public authority and does not compare host names; and bytes
  that OpenSSL has decrypted already do not wake kazoo's ``select``.

Methods named with an underscore run on kazoo's thread.
"""

import logging
import math
import select
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import _CONNECTION_DROP, ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

from loadmanager.adapters.zookeeper.options import SHORTEST_PAUSE_S, ZooKeeperOptions
from loadmanager.ports.coordination import CoordinationError

_KAZOO_LOG: Final = logging.getLogger("loadmanager.kazoo")
# At DEBUG kazoo logs each request with its content, login included.
_KAZOO_LOG.setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """What kazoo's thread reports to the loop.

    ``generation`` counts the connections of one client. ``state`` is one of kazoo's
    ``KeeperState``: CONNECTED, CONNECTING (the connection broke), EXPIRED_SESSION, or
    AUTH_FAILED and CLOSED, after which the client is of no more use.
    """

    client: "GatedClient"
    state: str
    generation: int
    session_id: int
    session_password: bytes
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Resumption:
    """A session that a former client began. ``last_zxid`` is the last change it saw."""

    session_id: int
    session_password: bytes
    last_zxid: int


class GatedClient(KazooClient):  # type: ignore[misc]  # kazoo ships no types
    """A kazoo client that sends a request on the connection it was meant for, or never.

    Args:
        options: where to connect, and how to log in.
        report: called on kazoo's thread with each event; must not block.
        resume: the session to take up; None begins one.
    """

    def __init__(
        self,
        options: ZooKeeperOptions,
        report: Callable[[ClientEvent], None],
        resume: Resumption | None = None,
    ) -> None:
        self._gate = threading.RLock()
        self._report = report
        self._generation = 0
        self._open = False
        self._admitted = 0
        self._granted_timeout_s = options.session_timeout_s
        handler = _Handler(options)
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
            logger=_KAZOO_LOG,
        )
        self.last_zxid = resume.last_zxid if resume else 0
        self._connection = _Connection(
            self, options.connect_timeout_s, self._conn_retry.copy(), options.sasl_options()
        )

    def admit(self, generation: int) -> None:
        """Let requests pass on this connection; called on the loop when it knows of it."""
        with self._gate:
            self._admitted = generation

    def drop(self) -> None:
        """Break the connection, so that another one is tried."""
        # kazoo's own thread does it: closing its socket from here would race with it.
        with self._gate:
            if self._open:
                super()._call(_CONNECTION_DROP, None)

    def end(self) -> None:
        """End the session and the threads. Blocks, so not for the loop."""
        self.stop()
        self.close()

    def established(self, timeout_s: float) -> None:
        """Note on kazoo's thread that a connection is open and logged in."""
        with self._gate:
            self._generation += 1
            self._open = True
            self._granted_timeout_s = timeout_s
            self._report_state(KeeperState.CONNECTED)

    def _call(self, request: Any, async_object: Any) -> Any:
        with self._gate:
            if self._open and self._admitted == self._generation:
                return super()._call(request, async_object)
        async_object.set_exception(ConnectionLoss())
        return False

    def _session_callback(self, state: str) -> None:
        # Under the gate: kazoo fails what is pending or queued in here, and nothing may
        # slip into the queue between that and the moment the gate is shut.
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
                # Before the pending requests fail: who gets their error sees why.
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
        )
        self._report(event)


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo ships no types
    """kazoo's connection, which reports when it is logged in and what was granted."""

    def __init__(
        self,
        client: GatedClient,
        connect_timeout_s: float,
        retry: KazooRetry,
        sasl_options: dict[str, str] | None,
    ) -> None:
        super().__init__(client, retry, logger=_KAZOO_LOG, sasl_options=sasl_options)
        self._connect_timeout_s = connect_timeout_s

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        read_timeout_ms, connect_timeout_ms = super()._connect(host, hostip, port)
        # kazoo keeps the granted timeout to itself, but its read timeout is 2/3 of it.
        self.client.established(round(read_timeout_ms * 1.5) / 1000)
        return read_timeout_ms, connect_timeout_ms

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if isinstance(request, Connect):
            timeout = min(timeout, self._connect_timeout_s)
        return super()._invoke(timeout, request, xid)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo ships no types
    """kazoo's threads and sockets, with our TLS and our patience."""

    def __init__(self, options: ZooKeeperOptions) -> None:
        super().__init__()
        self._options = options

    def create_connection(
        self, address: tuple[str, int], hostname: str = "", **_kazoo_settings: Any
    ) -> socket.socket:
        """Connect to one server."""
        plain = socket.create_connection(address, self._options.connect_timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            context = self._options.tls_context()
            return context.wrap_socket(plain, server_hostname=hostname) if context else plain
        except CoordinationError as error:
            plain.close()
            # The one kind of error after which kazoo tries again: the files may be half renewed.
            raise OSError(str(error)) from error
        except OSError:
            plain.close()
            raise

    def select(
        self, rlist: Sequence[Any], wlist: Sequence[Any], _xlist: Sequence[Any], timeout: float
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait for sockets, and see what OpenSSL has read ahead."""
        ahead = [one for one in rlist if isinstance(one, ssl.SSLSocket) and one.pending()]
        others = [one for one in rlist if one not in ahead]
        readable, writable = ready(others, wlist, 0 if ahead else timeout)
        return ahead + readable, writable, []


def ready(
    readers: Sequence[Any], writers: Sequence[Any], timeout_s: float | None
) -> tuple[list[Any], list[Any]]:
    """Return which sockets can be read and which written, at the latest after ``timeout_s``.

    kazoo waits four times for each request, and makes, fills and closes an epoll set each
    time. One ``poll`` does the same in one system call, where the loop gets its turn once.

    Raises:
        ValueError: a socket is closed.
    """
    wanted: dict[int, int] = {}
    for sockets, event in ((readers, select.POLLIN), (writers, select.POLLOUT)):
        for one in sockets:
            number = one if isinstance(one, int) else one.fileno()
            wanted[number] = wanted.get(number, 0) | event
    polling = select.poll()
    for number, events in wanted.items():
        polling.register(number, events)
    # Rounded up: to wait a little less, again and again, would be to spin.
    seen = dict(polling.poll(None if timeout_s is None else math.ceil(timeout_s * 1000)))
    # What failed or was hung up on can be read and written: that shows the error.
    return (
        [one for one in readers if _seen(seen, one) & ~select.POLLOUT],
        [one for one in writers if _seen(seen, one) & ~select.POLLIN],
    )


def _seen(seen: Mapping[int, int], one: Any) -> int:
    return seen.get(one if isinstance(one, int) else one.fileno(), 0)
