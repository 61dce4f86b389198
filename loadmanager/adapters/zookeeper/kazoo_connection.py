"""How kazoo's thread connects to a server and logs in."""

import logging
import math
import select
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.retry import KazooRetry

from loadmanager.adapters.zookeeper.options import ZooKeeperOptions
from loadmanager.ports.coordination import CoordinationError

KAZOO_LOG: Final = logging.getLogger("loadmanager.kazoo")
# At DEBUG kazoo logs each request with its content, including credentials.
KAZOO_LOG.setLevel(logging.WARNING)


class LoginConnection(ConnectionHandler):  # type: ignore[misc]  # kazoo ships no types
    """kazoo's connection, which reports its login and the granted session timeout."""

    def __init__(
        self,
        client: Any,
        connect_timeout_s: float,
        retry: KazooRetry,
        sasl_options: dict[str, str] | None,
    ) -> None:
        super().__init__(client, retry, logger=KAZOO_LOG, sasl_options=sasl_options)
        self._connect_timeout_s = connect_timeout_s

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        read_timeout_ms, connect_timeout_ms = super()._connect(host, hostip, port)
        # kazoo does not expose the granted timeout, but its read timeout is 2/3 of it.
        self.client.established(round(read_timeout_ms * 1.5) / 1000)
        return read_timeout_ms, connect_timeout_ms

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if isinstance(request, Connect):
            timeout = min(timeout, self._connect_timeout_s)
        return super()._invoke(timeout, request, xid)


class SocketHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo ships no types
    """kazoo's threads and sockets, with the TLS and timeouts of `ZooKeeperOptions`."""

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
            # kazoo tries again only after OSError, and the files may be half renewed.
            raise OSError(str(error)) from error
        except OSError:
            plain.close()
            raise

    def select(
        self, rlist: Sequence[Any], wlist: Sequence[Any], _xlist: Sequence[Any], timeout: float
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait for sockets; data that OpenSSL has already read counts as readable."""
        ahead = [one for one in rlist if isinstance(one, ssl.SSLSocket) and one.pending()]
        others = [one for one in rlist if one not in ahead]
        readable, writable = ready(others, wlist, 0 if ahead else timeout)
        return ahead + readable, writable, []


def ready(
    readers: Sequence[Any], writers: Sequence[Any], timeout_s: float | None
) -> tuple[list[Any], list[Any]]:
    """Return the readable and the writable sockets, after at most ``timeout_s``.

    kazoo waits four times for each request, and creates, fills and closes an epoll set each
    time. ``poll`` does the same in one system call, which releases the GIL only once.

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
    # Rounded up: waiting slightly too short, repeatedly, would be a busy loop.
    seen = dict(polling.poll(None if timeout_s is None else math.ceil(timeout_s * 1000)))
    # A socket with an error or hang-up counts as both: reading or writing it shows the error.
    return (
        [one for one in readers if _seen(seen, one) & ~select.POLLOUT],
        [one for one in writers if _seen(seen, one) & ~select.POLLIN],
    )


def _seen(seen: Mapping[int, int], one: Any) -> int:
    return seen.get(one if isinstance(one, int) else one.fileno(), 0)
