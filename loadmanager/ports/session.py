import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, islice
from types import SimpleNamespace
from typing import Any, Final, cast

import structlog

from loadmanager.core.errors import InvalidName
from loadmanager.ports.coordination import (
    CommitRejected,
    Connection,
    CoordinationError,
    Create,
    Disconnected,
    Link,
    Node,
    NodeExists,
    NodeMissing,
    NodeWatch,
    NotEmpty,
    Operation,
    SessionLost,
    SessionState,
    SetData,
    Stat,
    TooLarge,
    VersionMismatch,
    Watch,
)
from loadmanager.ports.watches import WatchTable

log = structlog.get_logger()

MAX_REQUEST_BYTES: Final = 0xFFFFF
"""ZooKeeper's ``jute.maxbuffer``: a server cuts the connection of a client that sends more."""

_REFUSED: Final = re.compile("[\\u0000-\\u001f\\u007f-\\u009f\\ud800-\\uf8ff\\ufff0-\\uffff]")
"""The characters that ZooKeeper does not accept in a path."""


Listener = Callable[[SessionState], None]


def check_path(path: str) -> str:
    """Return the path if ZooKeeper accepts it, else raise `InvalidName`."""
    parts = path.split("/")[1:]
    if path == "/":
        return path
    if not path.startswith("/") or {"", ".", ".."} & set(parts) or _REFUSED.search(path):
        raise InvalidName("znode path", path, "/name/name without empty or relative parts")
    return path


def parent_of(path: str) -> str:
    """Return the path of the parent; the root is its own parent."""
    return path.rpartition("/")[0] or "/"


_OPERATION_OVERHEAD_BYTES: Final = 128
"""An operation's headers and access list, rounded up; its path and content come on top."""


Observe = Callable[[str, str, float], None]
"""Called for each request with its kind, its result and its duration in seconds."""

RESULTS: Final[dict[type[CoordinationError], str]] = {
    NodeMissing: "node_missing",
    NodeExists: "node_exists",
    VersionMismatch: "version_mismatch",
    NotEmpty: "not_empty",
    Disconnected: "disconnected",
    SessionLost: "session_lost",
    CommitRejected: "commit_rejected",
}
"""The results of requests besides ``ok`` and ``failed``, by error."""


_REQUESTS: Final = (
    *("get", "exists", "children", "rearm", "sync", "heartbeat"),
    *("create", "set", "delete", "commit"),
)


def counted(link: Link, observe: Observe, clock_s: Callable[[], float] = time.monotonic) -> Link:
    def counting(kind: str) -> Callable[..., Awaitable[Any]]:
        send = getattr(link, kind)

        async def request(*arguments: Any, **named: Any) -> Any:
            asked_at_s = clock_s()
            result = "failed"
            try:
                answer = await send(*arguments, **named)
                result = "ok"
            except CoordinationError as error:
                result = RESULTS.get(type(error), result)
                raise
            finally:
                observe(kind, result, clock_s() - asked_at_s)
            return answer

        return request

    requests = {kind: counting(kind) for kind in _REQUESTS}
    return cast("Link", SimpleNamespace(open=link.open, close=link.close, **requests))


class Coordination:
    """One session with ZooKeeper, or something that behaves like it, upon a link.

    All methods are called on the event loop and all callbacks run on it. Methods raise
    `Disconnected` or `SessionLost` at once while the session is not CONNECTED: a request is never
    queued to be applied later, when it may be out of date. Paths are absolute below the chroot.
    What writes raises `TooLarge` for more than ``max_request_bytes``, paths and headers included.
    """

    max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, link: Link, *, chroot: str, timeout_s: float) -> None:
        self._link = link
        self._chroot = check_path(chroot) if chroot not in {"", "/"} else ""
        self._chroot_ready = not self._chroot
        self._subscribers: list[Listener] = []
        self._changed = asyncio.Event()
        self.session = self._link_state = SessionState(Connection.SUSPENDED, 0, timeout_s)
        self._preparation: asyncio.Task[None] | None = None
        self._watches = WatchTable(link)
        self._watching_session_id = 0
        self._opened = False
        self._closed = False

    async def start(self) -> None:
        """Begin connecting and return at once; keeps trying for ever.

        Raises nothing while the service is unreachable: `session` says it.
        """
        if self._opened:
            raise CoordinationError("started already; one object is one session")
        self._opened = True
        self._link.open(self._link_changed)

    async def close(self) -> None:
        """End the session; ephemeral nodes vanish now if it can be reached, not at expiry."""
        if self._closed:
            return
        self._closed = True
        self._watches.close()
        if self._preparation is not None:
            self._preparation.cancel()
        if self._opened:
            await self._link.close()
        self._become(replace(self.session, connection=Connection.LOST))

    def on_session(self, callback: Listener) -> Watch:
        """Call ``callback`` after each change of the session's state or id."""
        return _Subscription(self._subscribers, callback)

    async def get(self, path: str) -> Node | None:
        where = self._request_at(path)
        try:
            return await self._link.get(where)
        except NodeMissing:
            return None

    async def get_from_root(self, path: str) -> Node | None:
        """Return the node at a path of the whole service, whatever the chroot."""
        self._require_connected()
        try:
            return await self._link.get(check_path(path))
        except NodeMissing:
            return None

    async def children(self, path: str) -> tuple[str, ...]:
        where = self._request_at(path)
        try:
            return await self._link.children(where)
        except NodeMissing:
            return ()

    async def sync(self, path: str) -> None:
        """Return when a read on this session sees all that was applied before the call.

        A leader of ZooKeeper answers by itself: while it has lost the others and has not noticed,
        a read may still see an older state. Only a transaction proves that it leads.
        """
        await self._link.sync(self._request_at(path))

    async def heartbeat(self) -> None:
        """Return when a majority of the service has confirmed a transaction that changes nothing.

        A leader that lost the others and has not noticed confirms none, so no other one began
        before the call, and a read on this session sees all that was applied until then. The
        session cannot expire sooner than ``session.timeout_s`` after the last call of which the
        ensemble's leader knows: `loadmanager.core.lease` says which one that is.
        """
        self._require_connected()
        await self._link.heartbeat()

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, private: bool = False
    ) -> Stat:
        """Create a node, and missing parents as persistent empty nodes.

        A private node can be read and changed with this client's login alone, if it has one.

        A reply lost on the way is resolved inside: the method waits for the connection, at most
        for the session timeout, reads back, and counts an ephemeral node of this very session with
        this very content as created. So does a call that finds such a node: asking twice for the
        same lock is granted twice. Nothing is sent twice. Raises `NodeExists`: another client (or
        an earlier session) holds it; `Disconnected`: it was not created; of a persistent one that
        is not known.
        """
        where = self._request_at(path, data)
        session_id = self.session.session_id
        try:
            return await self._create(where, data, ephemeral=ephemeral, private=private)
        except NodeExists:
            if not ephemeral:
                raise
            return await self._adopt(where, data, session_id)
        except Disconnected as error:
            return await self._resolve_create(where, data, session_id, ephemeral, error)

    async def set(self, path: str, data: bytes, *, version: int = -1) -> Stat:
        return await self._link.set(self._request_at(path, data), data, version)

    async def delete(self, path: str, *, version: int = -1) -> None:
        """Raises `NodeMissing`, `VersionMismatch` or `NotEmpty`."""
        await self._link.delete(self._request_at(path), version)

    async def commit(self, operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        """Apply all operations or none, and return a stat for each `SetData`, else None.

        All nodes changed by one commit carry the same zxid, so the ``mzxid`` of a node set in it
        is the ``czxid`` of a lock created in it. Raises `CommitRejected`: none was applied; it
        names the operation that failed; `Disconnected`: the reply was lost; the caller reads back
        and compares.
        """
        self._require_connected()
        placed = tuple(replace(one, path=self._place(one.path)) for one in operations)
        self._check_size("commit", sum(_size(operation) for operation in placed))
        return await self._link.commit(placed) if placed else ()

    async def ensure(self, path: str) -> None:
        """Create a persistent empty node and its parents unless they exist."""
        await self._make(self._request_at(path))

    def watch(
        self,
        path: str,
        callback: Callable[[Node | None], None],
        *,
        postpone: Callable[[], bool] | None = None,
    ) -> NodeWatch:
        """Call ``callback`` with the node now, after each change and in each new session.

        Changes that follow one another closely may be reported as one: the last state is always
        reported, not every state, also of those while the connection was broken. None: the node
        does not exist.

        ``postpone`` is called before the first read, after a change and in a new session. Where it
        returns True nothing is read or reported, further changes included, until `NodeWatch.read`
        or a new session in which it returns False.
        """
        return self._watches.watch(self._place(path), callback, postpone)

    def watch_children(self, path: str, callback: Callable[[tuple[str, ...]], None]) -> Watch:
        """Call ``callback`` with the sorted child names now and after each change.

        The path need not exist (yet): that counts as no children.
        """
        return self._watches.watch_children(self._place(path), callback)

    def _link_changed(self, state: SessionState) -> None:
        """Publish the link's state.

        A first connection waits until the chroot exists. One that resumes the session waits until
        the watches are set again: what changed meanwhile is reported before anything is asked.
        """
        self._link_state = state
        if self._closed:
            return
        connected = state.connection is Connection.CONNECTED
        if connected and (not self._chroot_ready or self._lacks_watches(state)):
            self._preparation = asyncio.get_running_loop().create_task(self._prepare(state))
        else:
            self._publish(state)

    async def _prepare(self, state: SessionState) -> None:
        try:
            if not self._chroot_ready:
                await self._make_chroot()
            if self._lacks_watches(state):
                await self._watches.rearm()
        except (Disconnected, SessionLost):
            return  # The next connection tries again.
        if self._link_state is state:
            self._publish(state)

    def _lacks_watches(self, state: SessionState) -> bool:
        return self._watching_session_id == state.session_id and bool(self._watches.armed)

    async def _make_chroot(self) -> None:
        try:
            await self._make(self._chroot)
        except (Disconnected, SessionLost):
            raise
        except CoordinationError as error:
            # Each request raises the same error to its caller, which can act on it.
            log.error("coordination.chroot.refused", path=self._chroot, error=str(error))  # noqa: TRY400 - the text says it all, there is no bug to trace
        else:
            self._chroot_ready = True

    def _publish(self, state: SessionState) -> None:
        self._become(state)
        if state.connection is Connection.CONNECTED:
            if self._watching_session_id != state.session_id:
                self._watches.disarm()
                self._watching_session_id = state.session_id
            self._watches.reread()

    def _become(self, state: SessionState) -> None:
        if state == self.session:
            return
        self.session = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for listener in tuple(self._subscribers):
            try:
                listener(state)
            except Exception as error:  # noqa: BLE001 - as for any callback, the loop reports it; the other listeners must be called
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"session listener {listener!r} failed", "exception": error}
                )

    def _require_connected(self) -> None:
        if self.session.connection is Connection.SUSPENDED:
            raise Disconnected(f"{_named(self.session)} is suspended; nothing was sent")
        if self.session.connection is Connection.LOST:
            raise SessionLost(f"{_named(self.session)} is lost; nothing was sent")

    async def _reconnected(self, session_id: int) -> None:
        """Return when the session is connected again.

        Raises `SessionLost`: the session expired, or another one replaced it; `Disconnected`: it
        did not reconnect within its timeout.
        """
        timeout_s = self.session.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while self.session.connection is Connection.SUSPENDED:
                    await self._changed.wait()
        except TimeoutError:
            raise Disconnected(
                f"{_named(self.session)} was not connected again within {timeout_s:g} s"
            ) from None
        if self.session.connection is Connection.LOST or self.session.session_id != session_id:
            raise SessionLost(f"session {session_id:#x} ended before its reply came")

    def _place(self, path: str) -> str:
        """Return the complete path of ``path`` below the chroot ("" for none)."""
        check_path(path)
        return self._chroot if self._chroot and path == "/" else self._chroot + path

    def _request_at(self, path: str, data: bytes = b"") -> str:
        where = self._place(path)
        self._require_connected()
        self._check_size(where, len(where) + len(data) + _OPERATION_OVERHEAD_BYTES)
        return where

    def _check_size(self, where: str, size_bytes: int) -> None:
        if size_bytes > self.max_request_bytes:
            raise TooLarge(where, size_bytes, self.max_request_bytes)

    async def _create(self, where: str, data: bytes, *, ephemeral: bool, private: bool) -> Stat:
        while True:
            try:
                return await self._link.create(where, data, ephemeral=ephemeral, private=private)
            except NodeMissing:
                await self._make(parent_of(where))
                # The empty parent may be deleted again in the meantime: then create it again.

    async def _make(self, where: str) -> None:
        # Reading first costs one request if it exists, and needs no permission to create.
        if where == "/" or await self._link.exists(where) is not None:
            return
        for path in islice(accumulate(where.split("/"), "{}/{}".format), 1, None):
            if await self._link.exists(path) is None:
                with suppress(NodeExists):
                    await self._link.create(path, b"", ephemeral=False)

    async def _adopt(self, where: str, data: bytes, session_id: int) -> Stat:
        try:
            return await self._own_lock(where, data, session_id)
        except NodeMissing:
            raise NodeExists(f"{where}: existed, and was deleted just now") from None

    async def _own_lock(self, where: str, data: bytes, session_id: int) -> Stat:
        """Return the stat of a node that this session created with this content.

        Raises `NodeExists`: another session owns the node, or its content differs; `NodeMissing`:
        there is no such node.
        """
        node = await self._link.get(where)
        if node.stat.ephemeral_owner != session_id or node.data != data:
            raise NodeExists(f"{where}: exists, owned by {_owner(node.stat)}")
        return node.stat

    async def _resolve_create(
        self, where: str, data: bytes, session_id: int, ephemeral: bool, error: Disconnected
    ) -> Stat:
        """Return the stat of a create whose reply was lost, or raise why it failed."""
        await self._reconnected(session_id)
        await self._link.heartbeat()
        try:
            if not ephemeral and await self._link.exists(where) is not None:
                text = f"{where}: exists, but the reply that says who created it was lost"
                raise Disconnected(text) from error
            return await self._own_lock(where, data, session_id)
        except NodeMissing:
            raise Disconnected(f"{where}: the connection broke before it was created") from error


class _Subscription:
    def __init__(self, subscribers: list[Listener], listener: Listener) -> None:
        subscribers.append(listener)
        self._ends = [lambda: subscribers.remove(listener)]

    def close(self) -> None:
        while self._ends:
            self._ends.pop()()


def _named(session: SessionState) -> str:
    return f"session {session.session_id:#x}" if session.session_id else "the session"


def _owner(stat: Stat) -> str:
    return f"session {stat.ephemeral_owner:#x}" if stat.ephemeral_owner else "nobody (persistent)"


def _size(operation: Operation) -> int:
    content = operation.data if isinstance(operation, Create | SetData) else b""
    return _OPERATION_OVERHEAD_BYTES + len(operation.path) + len(content)
