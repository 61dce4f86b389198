"""The service: one tree, its transactions, its sessions and their watches.

Nothing here waits, draws lots or reads a clock of its own, so that a simulation that
calls in the same order gets the same answers. What ZooKeeper does and this does too:
every write takes the next zxid, and all parts of a commit share it; a node created
again starts at version 0; watches fire once and die with the connection; a session
that is silent for its timeout takes its ephemeral nodes along.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadmanager.adapters.coordination.link import Trigger
from loadmanager.adapters.memory.tree import (
    EMPTY_ROOT,
    Draft,
    Znode,
    drafted,
    ephemerals_of,
)
from loadmanager.ports.coordination import (
    CommitRejected,
    Delete,
    Node,
    NodeMissing,
    Operation,
    SessionLost,
    Stat,
)


@dataclass(slots=True)
class _Session:
    timeout_s: float
    expired: Callable[[], None]
    silent_since_s: float | None = None


@dataclass(slots=True)
class _Triggers:
    """Who is to be told what, in the order they asked: a dict keeps it, a set does not."""

    by_place: dict[tuple[str, str], dict[tuple[int, Trigger], None]] = field(default_factory=dict)

    def arm(self, place: tuple[str, str], session_id: int, trigger: Trigger) -> None:
        self.by_place.setdefault(place, {})[session_id, trigger] = None

    def fire(self, place: tuple[str, str]) -> None:
        for _, trigger in self.by_place.pop(place, {}):
            trigger()

    def forget(self, session_id: int) -> None:
        for place, armed in list(self.by_place.items()):
            kept = {key: None for key in armed if key[0] != session_id}
            if kept:
                self.by_place[place] = kept
            else:
                del self.by_place[place]


class MemoryService:
    """What all `MemoryCoordination` objects of one test share.

    Args:
        clock: monotonic seconds, for `expire_silent` alone.
    """

    def __init__(self, *, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._clock = clock
        self._tree: dict[str, Znode] = {"/": EMPTY_ROOT}
        self._zxid = 0
        self._sessions: dict[int, _Session] = {}
        self._last_session_id = 0x1000
        self._triggers = _Triggers()

    @property
    def zxid(self) -> int:
        """The id of the last transaction."""
        return self._zxid

    @property
    def session_ids(self) -> tuple[int, ...]:
        """The sessions that live, oldest first."""
        return tuple(self._sessions)

    def dump(self) -> dict[str, Node]:
        """Return every node but the root, by path, sorted: for a test's or checker's eyes."""
        return {path: self._tree[path].node for path in sorted(self._tree) if path != "/"}

    # Sessions.

    def open_session(self, timeout_s: float, expired: Callable[[], None]) -> int:
        """Begin a session; ``expired`` is called when it ends without `close_session`."""
        self._zxid += 1
        self._last_session_id += 1
        self._sessions[self._last_session_id] = _Session(timeout_s, expired)
        return self._last_session_id

    def resume_session(self, session_id: int) -> None:
        """Take up a session on a new connection.

        Raises:
            SessionLost: it has expired.
        """
        self._session(session_id).silent_since_s = None

    def silence(self, session_id: int) -> None:
        """Note that the session's connection broke: its watches are gone, its time runs."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.silent_since_s = self._clock()
            self._triggers.forget(session_id)

    def close_session(self, session_id: int) -> None:
        """End a session at its own wish."""
        if session_id in self._sessions:
            self._end(session_id)

    def expire(self, session_id: int) -> None:
        """End a session as ZooKeeper does when its time is up.

        Raises:
            SessionLost: there is no such session.
        """
        session = self._session(session_id)
        self._end(session_id)
        session.expired()

    def expire_silent(self) -> tuple[int, ...]:
        """Expire, and return, the sessions that were silent for their timeout."""
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
        """Return a node, and arm the trigger if it exists."""
        self._session(session_id)
        node = self._find(path).node
        self._arm(("node", path), session_id, trigger)
        return node

    def exists(self, session_id: int, path: str, trigger: Trigger | None = None) -> Stat | None:
        """Return a node's stat, and arm the trigger in any case."""
        self._session(session_id)
        self._arm(("node", path), session_id, trigger)
        znode = self._tree.get(path)
        return None if znode is None else znode.node.stat

    def children(
        self, session_id: int, path: str, trigger: Trigger | None = None
    ) -> tuple[str, ...]:
        """Return the sorted names below a node, and arm the trigger if it exists."""
        self._session(session_id)
        names = tuple(sorted(self._find(path).children))
        self._arm(("children", path), session_id, trigger)
        return names

    def apply(self, session_id: int, operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        """Apply all operations or none, and return a stat for each create and set.

        Raises:
            CommitRejected: one of them cannot be applied.
        """
        self._session(session_id)
        self._zxid += 1  # A refused transaction uses up its id as well.
        draft = Draft(self._tree, self._zxid, session_id)
        stats = drafted(draft, operations)
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

    def _find(self, path: str) -> Znode:
        znode = self._tree.get(path)
        if znode is None:
            raise NodeMissing(f"{path}: no such node")
        return znode

    def _arm(self, place: tuple[str, str], session_id: int, trigger: Trigger | None) -> None:
        if trigger is not None:
            self._triggers.arm(place, session_id, trigger)

    def _adopt(self, draft: Draft) -> None:
        for path, znode in draft.changes.items():
            if znode is None:
                self._tree.pop(path, None)
            else:
                self._tree[path] = znode
        for place in draft.touched:
            self._triggers.fire(place)

    def _end(self, session_id: int) -> None:
        """Remove a session with its ephemeral nodes, in one transaction."""
        del self._sessions[session_id]
        self._triggers.forget(session_id)
        self._zxid += 1
        draft = Draft(self._tree, self._zxid, session_id)
        drafted(draft, [Delete(path) for path in ephemerals_of(self._tree, session_id)])
        self._adopt(draft)
