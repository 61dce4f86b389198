"""One session with ZooKeeper. All its state belongs to the event loop."""

import asyncio
import contextlib
import math
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any, Final

import structlog
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RequestTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.protocol.states import EventType, KeeperState, ZnodeStat

from loadmanager.adapters.zookeeper.kazoo_overrides import ClientEvent, GatedClient, Resumption
from loadmanager.adapters.zookeeper.options import ZooKeeperOptions
from loadmanager.ports.coordination import (
    ArmedTrigger,
    Check,
    CommitRejected,
    Connection,
    CoordinationError,
    Create,
    Delete,
    Disconnected,
    Link,
    Node,
    NodeExists,
    NodeMissing,
    NotEmpty,
    Operation,
    SessionLost,
    SessionState,
    SetData,
    Stat,
    Trigger,
    VersionMismatch,
)
from loadmanager.ports.session import Coordination, Observe, counted

log = structlog.get_logger()

WINDOW: Final = 128
"""The most requests under way. An urgent one waits for the answers to no more than these."""

SILENCE_FRACTION: Final = 1 / 4
"""A connection without a due answer for this fraction of the session timeout is dead.

kazoo alone would notice at two thirds, when the broker must have stopped already, and
not at all while requests are made faster than it sends pings."""

PROBE_FRACTION: Final = 0.16
"""Interval of probes on an idle connection, as a fraction of the session timeout.

An agent's heartbeats come sooner ([ownership] heartbeat_fraction) and make probes unnecessary."""

CHECK_FRACTION: Final = 1 / 24
"""Interval of the checks of the two above. A dead link is noticed after at most
0.16 + 1/24 + 1/4 + 1/24 < 1/2 of the session timeout."""

MOST_REARMED_BYTES: Final = 131_072
"""The paths of one request that sets watches again, as in ZooKeeper's own client."""

_IN_DOUBT: Final = (
    *(ConnectionLoss, OperationTimeoutError, RequestTimeoutError, SessionMovedError),
    # kazoo gave up on a client that is closing or cannot log in; its session may live on.
    *(ConnectionClosedError, AuthFailedError),
)

# The first match counts: ConnectionClosedError is a subclass of SessionExpiredError.
_MEANINGS: Final[tuple[tuple[Any, type[CoordinationError], str], ...]] = (
    (NoNodeError, NodeMissing, "no such node, or no parent to create it in"),
    (NodeExistsError, NodeExists, "exists already"),
    (BadVersionError, VersionMismatch, "has another version than expected"),
    (NotEmptyError, NotEmpty, "has children"),
    (_IN_DOUBT, Disconnected, "no reply; it may or may not have been applied"),
    (SessionExpiredError, SessionLost, "the session has expired"),
)


def translated(error: Exception, where: str) -> CoordinationError:
    for kazoo_class, port_class, text in _MEANINGS:
        if isinstance(error, kazoo_class):
            return port_class(f"{where}: {text}")
    if isinstance(error, KazooException):
        return CoordinationError(f"{where}: ZooKeeper answered {type(error).__name__}")
    return Disconnected(f"{where}: an answer that cannot be read: {error}")


def rejection(results: Sequence[Any], paths: Sequence[str]) -> CommitRejected | None:
    """Return why a commit failed, or None if its results contain no error.

    kazoo returns errors among the results instead of raising them. The failed operation has its
    own error; ZooKeeper marks those before it as rolled back and those after it as inconsistent.
    """
    errors = [(i, result) for i, result in enumerate(results) if isinstance(result, Exception)]
    if not errors:
        return None
    bystanders = (RolledBackError, RuntimeInconsistency)
    culprits = [(i, error) for i, error in errors if not isinstance(error, bystanders)]
    index, error = (culprits or errors)[0]
    return CommitRejected(index, translated(error, paths[index]))


class Keepalive:
    """Counts requests and answers of one connection. Times are the loop's, in seconds."""

    def __init__(self, timeout_s: float, now_s: float) -> None:
        self.check_interval_s = timeout_s * CHECK_FRACTION
        self._timeout_s = timeout_s
        self._pending = 0
        self._quiet_since_s = now_s

    def asked(self, now_s: float) -> None:
        if self._pending == 0:
            self._quiet_since_s = now_s
        self._pending += 1

    def answered(self, now_s: float) -> None:
        self._pending -= 1
        self._quiet_since_s = now_s

    def is_dead(self, now_s: float) -> bool:
        return self._pending > 0 and self._silence_s(now_s) > self._timeout_s * SILENCE_FRACTION

    def wants_probe(self, now_s: float) -> bool:
        """Return whether no request is under way, and the connection has been idle for too long."""
        return self._pending == 0 and self._silence_s(now_s) >= self._timeout_s * PROBE_FRACTION

    def _silence_s(self, now_s: float) -> float:
        return now_s - self._quiet_since_s


async def newest_transaction(options: ZooKeeperOptions, within_s: float) -> int | None:
    """Return the id of the newest transaction of the service; None if no server answers in time.

    A server refuses a session that has seen newer transactions than its own: it closes the
    connection without an answer. A new session has seen none and is not refused. The request is
    ``sync``, so the answer is up to date even if its server lags behind the leader.
    """
    loop = asyncio.get_running_loop()
    answered = asyncio.Event()

    def on_loop(_answer: object) -> None:
        # Called on kazoo's thread if the connection broke, perhaps after the loop was closed.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(answered.set)

    def hear(event: ClientEvent) -> None:
        if event.state == KeeperState.CONNECTED:
            event.client.admit(event.generation)
            event.client.sync_async("/").rawlink(on_loop)

    client = GatedClient(options, loop, hear)
    try:
        client.start_async()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(answered.wait(), within_s)
        # The header of each answer names the newest transaction that the server has applied.
        return client.last_zxid or None
    finally:
        await asyncio.shield(asyncio.to_thread(client.end))


Send = Callable[[GatedClient], Any]
"""Gives one request to kazoo and returns its ``IAsyncResult``."""


class KazooSession:
    """Keeps one session connected, reports its state, and sends requests: a `Link`."""

    def __init__(self, options: ZooKeeperOptions) -> None:
        self._options = options
        self._private_access_list = options.private_access_list()
        self._state = SessionState(Connection.SUSPENDED, 0, options.session_timeout_s)
        self._changed: Callable[[SessionState], None] = _nobody
        self._window = asyncio.Semaphore(WINDOW)
        self._client: GatedClient | None = None
        self._resumption: Resumption | None = None
        self._generation = 0
        self._watched_zxid = 0
        self._watches_stand = True
        self._keepalive = Keepalive(options.session_timeout_s, 0.0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._disposals: set[asyncio.Task[None]] = set()
        self._failed_clients = 0
        self._doubtful_since_s = math.inf
        self._closing = False

    def open(self, changed: Callable[[SessionState], None]) -> None:
        """Raises `CoordinationError`: the certificates cannot be read."""
        self._options.tls_context()
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._changed = changed
        self._start_client()
        _run(self._watch_keepalive(), self._tasks)
        _run(self._watch_suspension(), self._tasks)

    async def close(self) -> None:
        """End the session; after ``close_timeout_s`` without an answer it is left to expire."""
        self._closing = True
        self._changed = _nobody
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        client, self._client = self._client, None
        if client is not None:
            _run(self._dispose(client), self._disposals)
        await asyncio.gather(*self._disposals)
        self._become(Connection.LOST)

    def on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call ``callback`` on the loop in its turn; the only method that kazoo's thread calls."""
        on_loop = threading.get_ident() == self._thread_id
        call = self._loop.call_soon if on_loop else self._loop.call_soon_threadsafe
        # A loop that was closed before the session has no callbacks left.
        with contextlib.suppress(RuntimeError):
            call(callback, *arguments)

    async def ask(
        self,
        where: str,
        send: Send,
        *,
        urgent: bool = False,
        possible: Callable[[Any], bool] = lambda _: True,
    ) -> Any:
        """Send one request on the connection that is open now, and return its answer.

        ``urgent`` does not wait until fewer than `WINDOW` requests are under way. An answer that is
        not ``possible``, or cannot be read, ends the connection.
        """
        client, generation = self._require_client(where), self._generation
        if not urgent:
            await self._window.acquire()
            if generation != self._generation:
                self._window.release()
                raise Disconnected(f"{where}: the connection broke; nothing was sent")
        answered = self._handed_over(client, send, urgent=urgent)
        try:
            answer = await answered
            if possible(answer):
                return answer
            error: Exception = ValueError(f"{answer!r:.100}")
        except Exception as failed:  # noqa: BLE001 - kazoo passes on whatever its decoding raised
            error = failed
        failure = translated(error, where)
        if isinstance(failure, Disconnected | SessionLost) and generation == self._generation:
            # The server answers so on a connection that stands: a new one shows what holds.
            client.drop()
            failure = Disconnected(str(failure))
        raise failure from error

    async def get(self, path: str, trigger: Trigger | None = None) -> Node:
        watch = trigger and self._watcher(trigger)
        data, stat = await self.ask(path, lambda client: client.get_async(path, watch))
        return Node(data or b"", _stat(stat))

    async def exists(self, path: str, trigger: Trigger | None = None) -> Stat | None:
        watch = trigger and self._watcher(trigger)
        stat = await self.ask(path, lambda client: client.exists_async(path, watch))
        return None if stat is None else _stat(stat)

    async def children(self, path: str, trigger: Trigger | None = None) -> tuple[str, ...]:
        watch = trigger and self._watcher(trigger)
        names = await self.ask(
            path,
            lambda client: client.get_children_async(path, watch),
            possible=lambda names: all(name and "/" not in name for name in names),
        )
        return tuple(sorted(names))

    async def sync(self, path: str) -> None:
        await self.ask(path, lambda client: client.sync_async(path))

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool, private: bool = False
    ) -> Stat:
        access_list = self._private_access_list if private else None
        _, stat = await self.ask(
            path,
            lambda client: client.create_async(
                path, data, acl=access_list, ephemeral=ephemeral, include_data=True
            ),
        )
        return _stat(stat)

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        return _stat(await self.ask(path, lambda client: client.set_async(path, data, version)))

    async def delete(self, path: str, version: int) -> None:
        await self.ask(path, lambda client: client.delete_async(path, version))

    async def commit(self, operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        def send(client: GatedClient) -> Any:
            transaction = client.transaction()
            for operation in operations:
                match operation:
                    case Create():
                        transaction.create(
                            operation.path, operation.data, ephemeral=operation.ephemeral
                        )
                    case SetData():
                        transaction.set_data(operation.path, operation.data, operation.version)
                    case Delete():
                        transaction.delete(operation.path, operation.version)
                    case Check():
                        transaction.check(operation.path, operation.version)
            return transaction.commit_async()

        paths = [operation.path for operation in operations]
        results = await self.ask(
            f"commit of {', '.join(paths)}",
            send,
            possible=lambda results: (
                len(results) == len(paths) and all(map(_may_result, operations, results))
            ),
        )
        rejected = rejection(results, paths)
        if rejected is not None:
            raise rejected from rejected.cause
        return tuple(_stat(one) if isinstance(one, ZnodeStat) else None for one in results)

    async def rearm(self, triggers: Sequence[ArmedTrigger]) -> None:
        """Set triggers again, by as many requests as their paths take.

        ZooKeeper compares them with the last transaction of which this session has certainly
        been notified, and triggers at once those of what changed since.
        """
        since, generation = self._watched_zxid, self._generation
        for some in _in_requests(triggers):
            send = methodcaller("rearm_async", since, some, self._watcher)
            await self.ask("watches", send)
        if generation == self._generation:
            self._watches_stand = True

    async def heartbeat(self) -> None:
        """Commit a transaction that changes nothing: a majority has to confirm it.

        A read would not be enough: a follower that has lost its leader still answers reads for
        a while, in which the leader may expire the session. Nor would ``sync``: a leader that
        has lost its followers answers it until it notices. The result of the check does not
        matter, since a majority confirms a rejected transaction, too.
        """

        def send(client: GatedClient) -> Any:
            transaction = client.transaction()
            transaction.check("/", -1)
            return transaction.commit_async()

        await self.ask("heartbeat", send, urgent=True)

    def _watcher(self, trigger: Trigger) -> "_LoopTrigger":
        return _LoopTrigger(self, trigger)

    def _require_client(self, where: str) -> GatedClient:
        if self._state.connection is Connection.LOST:
            raise SessionLost(f"{where}: the session is lost; nothing was sent")
        if self._client is None or self._state.connection is Connection.SUSPENDED:
            raise Disconnected(f"{where}: not connected; nothing was sent")
        return self._client

    def _handed_over(self, client: GatedClient, send: Send, *, urgent: bool) -> asyncio.Future[Any]:
        """Hand a request to kazoo. It is sent even if the caller is cancelled."""
        future: asyncio.Future[Any] = self._loop.create_future()
        keepalive = self._keepalive
        result = send(client)
        keepalive.asked(self._loop.time())

        def settle() -> None:
            keepalive.answered(self._loop.time())
            if not urgent:
                self._window.release()
            if future.done():
                return
            if result.successful():
                future.set_result(result.get_nowait())
            else:
                future.set_exception(result.exception)

        result.rawlink(lambda _: self.on_loop(settle))
        return future

    def _start_client(self) -> None:
        self._client = GatedClient(
            self._options, self._loop, self._on_client_event, self._resumption
        )
        self._client.start_async()

    def _on_client_event(self, event: ClientEvent) -> None:
        if self._closing or event.client is not self._client:
            return
        if event.state != KeeperState.CONNECTED and self._watches_stand:
            self._watched_zxid, self._watches_stand = event.last_zxid, False
        match event.state:
            case KeeperState.CONNECTED:
                self._connected(event)
            case KeeperState.EXPIRED_SESSION:
                self._generation += 1
                self._resumption, self._doubtful_since_s = None, math.inf
                log.error("zookeeper.session.lost", **self._fields())
                self._become(Connection.LOST)
            case KeeperState.CONNECTING:
                self._suspend()
            case _:
                # Done at once, because one client may report more than one such event.
                self._client = None
                self._suspend()
                # Its threads must end even if `close` cancels the other task before it begins.
                disposal = _run(self._dispose(event.client), self._disposals)
                _run(self._replace(event.client, event.state, disposal), self._tasks)

    def _connected(self, event: ClientEvent) -> None:
        former = self._state.session_id
        self._generation += 1
        self._failed_clients = 0
        self._keepalive = Keepalive(event.timeout_s, self._loop.time())
        if former not in {0, event.session_id} and self._state.connection is not Connection.LOST:
            # A server may begin a new session without ever reporting that the old one expired.
            log.error("zookeeper.session.replaced", former=f"{former:#x}")
            self._become(Connection.LOST)
        self._doubtful_since_s = math.inf
        if former != event.session_id:
            self._watches_stand = True  # All that there are will be set by reads.
        self._resumption = Resumption(event.session_id, event.session_password, 0)
        self._state = SessionState(Connection.CONNECTED, event.session_id, event.timeout_s)
        event.client.admit(event.generation)
        log.info("zookeeper.session.connected", **self._fields())
        self._changed(self._state)

    def _suspend(self) -> None:
        self._generation += 1
        if self._state.connection is Connection.CONNECTED:
            log.warning("zookeeper.session.suspended", **self._fields())
            self._doubtful_since_s = self._loop.time()
            self._become(Connection.SUSPENDED)

    def _become(self, connection: Connection) -> None:
        self._state = replace(self._state, connection=connection)
        self._changed(self._state)

    async def _replace(self, client: GatedClient, state: str, disposal: asyncio.Task[None]) -> None:
        """Resume the session with a new client after kazoo gave up.

        kazoo gives up when a login fails, and a server that fails during the login looks the
        same. The session continues in the service, so it is not LOST.
        """
        self._failed_clients += 1
        ceiling_s = min(0.1 * 2**self._failed_clients, self._options.longest_pause_s)
        delay_s = ceiling_s * (0.6 + 0.4 * secrets.randbelow(1000) / 1000)
        log.error("zookeeper.login.failed", state=state, retry_s=round(delay_s, 2))
        if self._resumption is not None:
            self._resumption = replace(self._resumption, last_zxid=client.last_zxid)
        await asyncio.shield(disposal)
        await asyncio.sleep(delay_s)
        self._start_client()

    async def _dispose(self, client: GatedClient) -> None:
        """Stop a client. Its threads end within ``close_timeout_s`` and one connection attempt."""
        stopping = asyncio.ensure_future(asyncio.to_thread(client.end))
        done, _ = await asyncio.wait({stopping}, timeout=self._options.close_timeout_s)
        if not done:
            log.warning("zookeeper.session.abandoned", **self._fields())
            client.drop()
        await stopping

    async def _watch_keepalive(self) -> None:
        """Drop a connection that no longer answers, and probe an idle one."""
        while True:
            await asyncio.sleep(self._keepalive.check_interval_s)
            now_s = self._loop.time()
            if self._client is None or self._state.connection is not Connection.CONNECTED:
                continue
            if self._keepalive.is_dead(now_s):
                log.warning("zookeeper.connection.silent", **self._fields())
                self._client.drop()
                self._keepalive = Keepalive(self._state.timeout_s, now_s)
            elif self._keepalive.wants_probe(now_s):
                _run(self._probe(), self._tasks)

    async def _watch_suspension(self) -> None:
        """Check, while a session is suspended, whether the servers can resume it at all.

        Servers whose data were replaced by older data, or lost, refuse the session until they
        have passed the transactions that it has seen. They refuse without a reason, as failed
        servers do. So their newest transaction is read once per half a session timeout.
        """
        while True:
            await asyncio.sleep(self._keepalive.check_interval_s)
            timeout_s, client = self._state.timeout_s, self._client
            if client is None or self._loop.time() < self._doubtful_since_s + timeout_s / 2:
                continue
            newest = await newest_transaction(self._options, timeout_s)
            if self._doubtful_since_s == math.inf or client is not self._client:
                continue
            self._doubtful_since_s = self._loop.time()
            if newest is not None and newest < client.last_zxid:
                await self._give_up(client, newest)

    async def _give_up(self, client: GatedClient, newest: int) -> None:
        """Begin a new session to replace one that has seen newer transactions than the service has.

        As after a restart of the process, its locks are gone or belong to the former session.
        A session resumed on older data would trust locks that others may have acquired.
        """
        log.error(
            "zookeeper.data.replaced",
            why="the servers lack transactions that this session has seen",
            newest=newest,
            former=client.last_zxid,
        )
        self._doubtful_since_s = math.inf
        self._client, self._resumption = None, None
        self._generation += 1
        self._become(Connection.LOST)
        # Its threads must end even if `close` cancels this very task.
        await asyncio.shield(_run(self._dispose(client), self._disposals))
        self._start_client()

    async def _probe(self) -> None:
        # The keepalive and the session's state show the result.
        with contextlib.suppress(CoordinationError):
            await self.ask("probe", lambda client: client.sync_async("/"), urgent=True)

    def _fields(self) -> dict[str, object]:
        return {
            "session_id": f"{self._state.session_id:#x}",
            "timeout_s": self._state.timeout_s,
            "hosts": self._options.hosts,
        }


def _run(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


def _nobody(_state: SessionState) -> None: ...


@dataclass(frozen=True, slots=True)
class _LoopTrigger:
    """A trigger that kazoo calls on its thread. Equal for equal triggers: kazoo keeps a set."""

    session: KazooSession
    trigger: Trigger

    def __call__(self, event: Any) -> None:
        # NONE reports a lost connection, which the session's state reports as well.
        if event.type != EventType.NONE:
            self.session.on_loop(self.trigger)


def _in_requests(triggers: Sequence[ArmedTrigger]) -> Iterator[list[ArmedTrigger]]:
    """Yield the triggers in parts that a server takes at once."""
    some: list[ArmedTrigger] = []
    size_bytes = 0
    for one in triggers:
        path_bytes = len(one.path.encode()) + 4
        if some and size_bytes + path_bytes > MOST_REARMED_BYTES:
            yield some
            some, size_bytes = [], 0
        some.append(one)
        size_bytes += path_bytes
    if some:
        yield some


def _may_result(operation: Operation, result: Any) -> bool:
    is_stat = isinstance(result, ZnodeStat)
    return isinstance(result, Exception) or is_stat is isinstance(operation, SetData)


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(
        version=stat.version,
        czxid=stat.czxid,
        mzxid=stat.mzxid,
        ephemeral_owner=stat.ephemeralOwner,
    )


class ZooKeeperCoordination(Coordination):
    """One ZooKeeper session; retries until it is connected.

    A connection without answers is reported as SUSPENDED within half the session timeout. LOST is
    reported only when a server says so, which is after a reconnect. So a holder of locks that
    must stop before others can acquire them counts the time since its last successful
    `heartbeat`. ``observe`` is called for each request with its kind, result and duration in
    seconds.
    """

    def __init__(self, options: ZooKeeperOptions, observe: Observe | None = None) -> None:
        link: Link = KazooSession(options)
        super().__init__(
            counted(link, observe) if observe else link,
            chroot=options.chroot,
            timeout_s=options.session_timeout_s,
        )
