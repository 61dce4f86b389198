"""A kazoo client that never lets a request be applied at the wrong time.

This file and `kazoo_connection` are the only ones that use more than kazoo's documented interface,
which has no hooks for this; `tests/zookeeper/test_traps.py` fails if a new kazoo release breaks
it. They change:

- kazoo queues requests while the connection is broken and sends them after it is back,
  perhaps in another session. Here a request is refused unless the event loop has been notified
  of the connection that is open now (`GatedClient.admit`).
- kazoo reports a connection before it has logged in. Here a connection is reported after the
  login.
- kazoo does not report the granted session timeout.
- kazoo cannot set watches again after a reconnect: it drops them, so all would be read again.
- kazoo's pauses between attempts do not depend on the session timeout.
- kazoo waits up to a whole session timeout for one server to accept a connection.
- kazoo wakes three threads for each request. Here the event loop sends and receives.
- kazoo's TLS trusts every public authority and does not verify host names.

Methods named with an underscore run on kazoo's thread.
"""

import asyncio
import contextlib
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, ConnectionLoss
from kazoo.protocol.serialization import int_struct, write_string
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

from loadmanager.adapters.coordination.link import ArmedTrigger, ReadKind, Trigger
from loadmanager.adapters.zookeeper.kazoo_connection import (
    KAZOO_LOG,
    LoopConnection,
    SocketHandler,
)
from loadmanager.adapters.zookeeper.options import SHORTEST_PAUSE_S, ZooKeeperOptions

_LONG: Final = struct.Struct("!q")


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
        parts = [_LONG.pack(self.since_zxid)]
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
            self._admitted = generation
            if self._open and generation == self._generation:
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
