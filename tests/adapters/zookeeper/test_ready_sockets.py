"""Which sockets can be read and written, as kazoo wants to know it four times a request."""

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from loadmanager.adapters.zookeeper.kazoo_connection import ready

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


def test_nothing_to_read_is_told_after_the_timeout(pair: Pair) -> None:
    assert ready([pair[0]], [], 0.001) == ([], [])


def test_what_came_can_be_read_by_socket_and_by_number(pair: Pair) -> None:
    here, there = pair
    there.send(b"x")
    assert ready([here, here.fileno(), there], [], None) == ([here, here.fileno()], [])


def test_a_full_socket_cannot_be_written(pair: Pair) -> None:
    here, there = pair
    assert ready([], [here], 0) == ([], [here])
    here.settimeout(0)
    with suppress(BlockingIOError):
        while True:
            here.send(b"x" * 65536)
    assert ready([there], [here], 0) == ([there], [])


def test_one_socket_may_be_both_read_and_written(pair: Pair) -> None:
    here, there = pair
    assert ready([here], [here], None) == ([], [here])
    there.send(b"x")
    assert ready([here], [here], None) == ([here], [here])


def test_a_connection_that_the_other_end_closed_can_be_read(pair: Pair) -> None:
    here, there = pair
    there.close()
    assert ready([here], [], None) == ([here], [])


def test_a_socket_that_was_closed_here_is_an_error(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(ValueError, match="negative"):
        ready([pair[0]], [], 0)
