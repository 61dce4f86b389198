"""The service: one tree, its transactions, its sessions and their watches.

Nothing here waits, draws lots or reads a clock of its own, so that a simulation that
calls in the same order gets the same answers. What ZooKeeper does and this does too:
every write takes the next zxid, and all parts of a commit share it; a node created
again starts at version 0; watches fire once and die with the connection; a session
that is silent for its timeout takes its ephemeral nodes along.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadmanager.ports.coordination import (
    ArmedTrigger,
    CommitRejected,
    Delete,
    Node,
    Operation,
    ReadKind,
    SessionLost,
    Stat,
    Trigger,
)
from tests.testbed.memory.server import Server
from tests.testbed.memory.tree import EMPTY_ROOT, Draft, drafted, ephemerals_of


@dataclass(slots=True)
class _Session:
    timeout_s: float
    expired: Callable[[], None]
    server: Server
    silent_since_s: float | None = None


class MemoryService:
    """What all `MemoryCoordination` objects of one test share.

    Sessions are on the ``main`` server, which is always up to date, unless a test adds
    another and lets it fall behind.

    Args:
        clock: monotonic seconds, for `expire_silent` alone.
    """

    def __init__(self, *, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._clock = clock
        self.main = Server({"/": EMPTY_ROOT}, 0)
        self._others: list[Server] = []
        self.zxid = 0
        self._sessions: dict[int, _Session] = {}
        self._last_session_id = 0x1000

    @property
    def session_ids(self) -> tuple[int, ...]:
        return tuple(self._sessions)

    def dump(self) -> dict[str, Node]:
        """Return every node but the root, by path, sorted: for a test's or checker's eyes."""
        tree = self.main.tree
        return {path: tree[path].node for path in sorted(tree) if path != "/"}

    # Servers.

    @property
    def others(self) -> tuple[Server, ...]:
        return tuple(self._others)

    def add_server(self) -> Server:
        server = Server(self.main.tree, self.zxid)
        self._others.append(server)
        return server

    def remove_server(self, server: Server) -> None:
        """Stop a server. Sessions on it have to `attach` to another before they ask again."""
        self._others.remove(server)
        server.stop()

    def attach(self, session_id: int, server: Server, seen_zxid: int) -> Server:
        """Connect a session to ``server``, or to the main one; return which.

        As in ZooKeeper, none is connected to a server that is behind what it has seen.
        """
        session = self._session(session_id)
        fit = server in self._others and server.in_ensemble and server.zxid >= seen_zxid
        session.server = server if fit else self.main
        return session.server

    # Sessions.

    def open_session(self, timeout_s: float, expired: Callable[[], None]) -> int:
        """Begin a session; ``expired`` is called when it ends without `close_session`."""
        self._last_session_id += 1
        self._sessions[self._last_session_id] = _Session(timeout_s, expired, self.main)
        self._adopt(self._draft(self._last_session_id))
        return self._last_session_id

    def resume_session(self, session_id: int) -> None:
        """Take up a session on a new connection; raises SessionLost."""
        self._session(session_id).silent_since_s = None

    def silence(self, session_id: int) -> None:
        """Note that the session's connection broke: its watches are gone, its time runs."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.silent_since_s = self._clock()
            session.server.triggers.forget(session_id)

    def close_session(self, session_id: int) -> None:
        if session_id in self._sessions:
            self._end(session_id)

    def expire(self, session_id: int) -> None:
        """End a session as ZooKeeper does when its time is up; raises SessionLost."""
        session = self._session(session_id)
        self._end(session_id)
        session.expired()

    def expire_silent(self) -> tuple[int, ...]:
        now_s = self._clock()
        due = tuple(
            session_id
            for session_id, session in self._sessions.items()
            if session.silent_since_s is not None
            and now_s - session.silent_since_s >= session.timeout_s
        )
        for session_id in due:
            self.expire(session_id)
        return due

    # Requests.

    def get(self, session_id: int, path: str, trigger: Trigger | None = None) -> Node:
        server = self._session(session_id).server
        node = server.find(path).node
        if trigger is not None:
            server.triggers.arm(("node", path), session_id, trigger)
        return node

    def exists(self, session_id: int, path: str, trigger: Trigger | None = None) -> Stat | None:
        server = self._session(session_id).server
        if trigger is not None:
            server.triggers.arm(("node", path), session_id, trigger)
        znode = server.tree.get(path)
        return None if znode is None else znode.node.stat

    def children(
        self, session_id: int, path: str, trigger: Trigger | None = None
    ) -> tuple[str, ...]:
        server = self._session(session_id).server
        names = tuple(sorted(server.find(path).children))
        if trigger is not None:
            server.triggers.arm(("children", path), session_id, trigger)
        return names

    def rearm(self, session_id: int, since_zxid: int, triggers: Sequence[ArmedTrigger]) -> None:
        """Arm triggers again, and call those for which something changed after ``since_zxid``."""
        server = self._session(session_id).server
        for armed in triggers:
            znode = server.tree.get(armed.path)
            match armed.kind:
                case ReadKind.NODE:
                    changed = znode is None or znode.node.stat.mzxid > since_zxid
                case ReadKind.MISSING:
                    changed = znode is not None
                case ReadKind.CHILDREN:
                    changed = znode is None or znode.pzxid > since_zxid
            if changed:
                armed.trigger()
            else:
                what = "children" if armed.kind is ReadKind.CHILDREN else "node"
                server.triggers.arm((what, armed.path), session_id, armed.trigger)

    def sync(self, session_id: int) -> None:
        """Let the leader hear of a session; its server has to reach the zxid of now."""
        self._session(session_id)

    def apply(self, session_id: int, operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        """Apply all operations or none, and return a stat for each create and set.

        Raises:
            CommitRejected: one of them cannot be applied.
        """
        self._session(session_id)
        draft = self._draft(session_id)
        try:
            stats = drafted(draft, operations)
        except CommitRejected:
            # A refused transaction uses up its id as well.
            self._adopt(Draft(self.main.tree, draft.zxid, session_id))
            raise
        self._adopt(draft)
        return tuple(stats)

    def apply_one(self, session_id: int, operation: Operation) -> Stat | None:
        """Apply one operation outside a commit, so with its own error."""
        try:
            return self.apply(session_id, (operation,))[0]
        except CommitRejected as rejected:
            raise rejected.cause from None

    def _session(self, session_id: int) -> _Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionLost(f"session {session_id:#x} has expired")
        return session

    def _draft(self, session_id: int) -> Draft:
        self.zxid += 1
        return Draft(self.main.tree, self.zxid, session_id)

    def _adopt(self, draft: Draft) -> None:
        self.main.receive(draft)
        for server in self._others:
            if server.in_ensemble:
                server.receive(draft)

    def _end(self, session_id: int) -> None:
        self._sessions.pop(session_id).server.triggers.forget(session_id)
        draft = self._draft(session_id)
        drafted(draft, [Delete(path) for path in ephemerals_of(self.main.tree, session_id)])
        self._adopt(draft)
