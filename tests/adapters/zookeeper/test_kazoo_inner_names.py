"""What of kazoo is overridden or read that its documentation does not promise.

A new minor version may rename any of it: then these tests say what, and pyproject.toml keeps
such a version out until they pass with it.
"""

import inspect
from importlib.metadata import version

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler

OVERRIDDEN = [
    (KazooClient, "_call", ["request", "async_object"]),
    (KazooClient, "_session_callback", ["state"]),
    (ConnectionHandler, "_connect", ["host", "hostip", "port"]),
    (ConnectionHandler, "_invoke", ["timeout", "request", "xid"]),
    (ConnectionHandler, "_submit", ["request", "timeout", "xid"]),
    (ConnectionHandler, "_write", ["msg", "timeout"]),
    (ConnectionHandler, "_send_ping", ["connect_timeout"]),
    (ConnectionHandler, "_read_header", ["timeout"]),
    (ConnectionHandler, "_read_socket", ["read_timeout"]),
    (SequentialThreadingHandler, "create_connection", None),
    (SequentialThreadingHandler, "select", None),
    (SequentialThreadingHandler, "start", []),
    (SequentialThreadingHandler, "stop", []),
    (SequentialThreadingHandler, "dispatch_callback", ["callback"]),
]


@pytest.mark.parametrize(("kind", "name", "parameters"), OVERRIDDEN)
def test_kazoo_has_what_is_overridden(kind: type, name: str, parameters: list[str] | None) -> None:
    method = getattr(kind, name, None)
    assert method is not None, f"kazoo {version('kazoo')} has no {kind.__name__}.{name}"
    if parameters is not None:
        assert list(inspect.signature(method).parameters)[1:] == parameters


@pytest.mark.parametrize(
    "name",
    [
        *("_connection", "_conn_retry", "_session_id", "_session_passwd", "_state", "last_zxid"),
        *("_pending", "_queue", "_stopped", "_data_watchers", "_child_watchers"),
    ],
)
def test_kazoo_has_the_attributes_that_are_read(name: str) -> None:
    client = KazooClient(hosts="127.0.0.1:1")
    assert hasattr(client, name), f"kazoo {version('kazoo')} has no KazooClient.{name}"


@pytest.mark.parametrize("name", ["_socket", "_read_sock", "_write_sock", "_xid"])
def test_kazoos_connection_has_the_attributes_that_are_used(name: str) -> None:
    connection = KazooClient(hosts="127.0.0.1:1")._connection
    assert hasattr(connection, name), f"kazoo {version('kazoo')} has no ConnectionHandler.{name}"
