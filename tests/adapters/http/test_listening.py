"""Where the server listens: one address, or all of them."""

import socket

import pytest

from loadmanager.adapters.http.health_listener import listening_sockets


def reached(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=5):
            return True
    except OSError:
        return False


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_no_host_is_every_address_with_one_port() -> None:
    opened = listening_sockets("", 0, 5)
    try:
        (port,) = {one.getsockname()[1] for one in opened}
        assert reached("127.0.0.1", port)
        assert reached("::1", port) == has_ipv6()
    finally:
        for one in opened:
            one.close()


def test_a_host_is_that_address_alone() -> None:
    (opened,) = listening_sockets("127.0.0.1", 0, 5)
    with opened:
        assert opened.getsockname()[0] == "127.0.0.1"


def test_a_host_without_ipv6_listens_on_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without_ipv6(family: int = socket.AF_INET, *rest: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return real(family, *rest)

    monkeypatch.setattr(socket, "socket", without_ipv6)
    (opened,) = listening_sockets("", 0, 5)
    with opened:
        assert opened.family == socket.AF_INET


def test_a_port_that_is_taken_is_told_and_nothing_stays_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            listening_sockets("", port, 5)
    with socket.create_server(("127.0.0.1", port)):
        pass
