import asyncio
import errno
import socket
from typing import Any, Final

from aiohttp import web

# The errors of a host on which one of the two protocols is missing or disabled.
_NO_PROTOCOL: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


def listening_sockets(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Return sockets that listen on ``host``; "" is all addresses, IPv4 and IPv6 where present.

    With port 0 all of them have the port that the first one got. Raises `OSError`: no address can
    be bound, or one of them is in use.
    """
    opened: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, address in _addresses(host):
            try:
                opened.append(_listening(family, (address[0], port, *address[2:]), backlog))
            except OSError as error:
                if error.errno not in _NO_PROTOCOL:
                    raise
                absent = error
            else:
                port = opened[0].getsockname()[1]
        if absent is not None and not opened:
            raise absent
    except OSError:
        for one in opened:
            one.close()
        raise
    return opened


def _addresses(host: str) -> list[tuple[int, tuple[Any, ...]]]:
    found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    different = dict.fromkeys((int(one[0]), one[4]) for one in found)
    return sorted(different, key=lambda one: one[0] != socket.AF_INET)


def _listening(family: int, address: tuple[Any, ...], backlog: int) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # IPv4 has a separate socket, so that its peers have IPv4 addresses.
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
        one.listen(backlog)
    except OSError as error:
        one.close()
        why = (error.strerror or str(error)).lower()
        raise OSError(error.errno, f"{address[0]} port {address[1]}: {why}") from error
    return one


class TimedSite(web.SockSite):
    """aiohttp's site with a timeout of TLS handshakes.

    asyncio's default is a minute, and before the end of the handshake no other timeout applies.
    """

    __slots__ = ("_handshake_s", "_made_by")

    def __init__(self, runner: web.ServerRunner, sock: socket.socket, **kwargs: Any) -> None:
        self._handshake_s: float = kwargs.pop("handshake_s")
        self._made_by: web.Server = kwargs.pop("server")
        super().__init__(runner, sock, **kwargs)

    async def start(self) -> None:
        await web.BaseSite.start(self)
        self._server = await asyncio.get_running_loop().create_server(
            self._made_by,
            sock=self._sock,
            ssl=self._ssl_context,
            backlog=self._backlog,
            ssl_handshake_timeout=self._handshake_s if self._ssl_context else None,
        )
