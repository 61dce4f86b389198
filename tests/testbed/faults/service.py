import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loadmanager.core import znodes
from loadmanager.core.wire.records import decode_leader
from loadmanager.ports.coordination import Delete, Operation, Stat
from tests.testbed.memory import MemoryService
from tests.testbed.memory.server import Server
from tests.testbed.memory.tree import Draft, Znode, drafted

_EPOCH_BITS: Final = 32
NodeChanged = Callable[[str, Znode | None, Znode | None], None]
"""Called with the path, the former and the new node of a change; None for no node."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    zxid: int
    tree: Mapping[str, Znode]


class TimedService(MemoryService):
    """Expires sessions in virtual time, counted from when the ensemble's leader last knew of each.

    Clients are connected to followers, and ping every third of their timeout. Every
    ``half_tick_s`` a follower reports the sessions that were active since its previous report, and
    the timeout counts from that report; if it is 0, from the activity itself. Requests and
    transactions that a follower forwards to the leader do not count. When the connection of a
    client breaks, its follower may fail too (``fails``) and makes no further report; otherwise
    the timeout counts from the last request.

    While the service is down no timeout counts. Afterwards every session has its whole timeout,
    as under a new leader of an ensemble, whose epoch is the upper half of transaction ids.
    ``epochs`` has the epoch of every elected sidecar; ``watchers`` are called at each change of
    a node, before any client.
    """

    def __init__(self) -> None:
        super().__init__(clock=lambda: asyncio.get_running_loop().time())
        self.half_tick_s = 0.0
        self.fails: Callable[[], bool] = lambda: True
        self.restored_at_s = 0.0
        """When an older state was restored last."""
        self._lags_s: dict[Server, float] = {}
        self.epochs: list[int] = []
        self.watchers: list[NodeChanged] = []
        self._down = False
        self._heard_at_s: dict[int, float] = {}
        self._reported_at_s: dict[int, float] = {}

    @property
    def down(self) -> bool:
        """Whether it has no majority: it answers no request and expires no session."""
        return self._down

    @property
    def nodes(self) -> Mapping[str, Znode]:
        """All nodes by path, unordered; the mapping changes with the service."""
        return self.main.tree

    def go_down(self) -> None:
        self._down = True

    def come_up(self) -> None:
        """Regain the majority, with a new leader: each session has its whole timeout again."""
        self._down = False
        self.zxid = ((self.zxid >> _EPOCH_BITS) + 1) << _EPOCH_BITS
        now_s = self._clock()
        for session_id, session in self._sessions.items():
            self._heard_at_s[session_id] = self._reported_at_s[session_id] = now_s
            if session.silent_since_s is not None:
                session.silent_since_s = now_s
                self._expire_after(session.timeout_s)

    def snapshot(self) -> Snapshot:
        """Return a copy of all nodes, for `restore`."""
        return Snapshot(self.zxid, dict(self.main.tree))

    def restore(self, snapshot: Snapshot) -> None:
        """Replace all nodes by an older copy, without its ephemeral nodes, under a new leader.

        All clients must have been stopped, and only one server may run.
        """
        tree = dict(snapshot.tree)
        draft = Draft(tree, snapshot.zxid, 0)
        ephemeral = [path for path, one in tree.items() if one.node.stat.ephemeral_owner]
        drafted(draft, [Delete(path) for path in sorted(ephemeral)])
        draft.apply_to(tree)
        self.main.tree = tree
        self.zxid = self.main.zxid = ((snapshot.zxid >> _EPOCH_BITS) + 1) << _EPOCH_BITS
        self.epochs.clear()
        self.restored_at_s = self._clock()

    def lag(self, server: Server, lag_s: float) -> None:
        """Let a server apply each transaction ``lag_s`` after its commit."""
        self._lags_s[server] = lag_s
        server.hold()

    def hurry(self) -> None:
        lags_s, self._lags_s = self._lags_s, {}
        for server in lags_s:
            server.catch_up()

    def lag_s_of(self, server: Server) -> float:
        return self._lags_s.get(server, 0.0)

    def open_session(self, timeout_s: float, expired: Callable[[], None]) -> int:
        session_id = super().open_session(timeout_s, expired)
        self._heard_at_s[session_id] = self._reported_at_s[session_id] = self._clock()
        return session_id

    def resume_session(self, session_id: int) -> None:
        """Resume a session on a new connection; its follower asks the leader about it."""
        super().resume_session(session_id)
        self._heard_at_s[session_id] = self._reported_at_s[session_id] = self._clock()

    def lives(self, session_id: int) -> bool:
        return session_id in self._sessions

    def silence(self, session_id: int) -> None:
        """Let the timeout of the session count from its last request."""
        session = self._sessions.get(session_id)
        muted_since_s = session.silent_since_s if session else None
        super().silence(session_id)
        if session is not None and muted_since_s is not None:
            session.silent_since_s = muted_since_s
        elif session is not None:
            session.silent_since_s = None
            self.mute(session_id)

    def mute(self, session_id: int) -> None:
        """Receive nothing more from a connected session: its client is frozen or cut off."""
        session = self._sessions.get(session_id)
        if session is not None and session.silent_since_s is None:
            now_s = self._clock()
            known_at_s = self._known_at_s(session_id, now_s)
            heard_at_s = self._hearings(session_id, now_s)[-1]
            self._reported_at_s[session_id], self._heard_at_s[session_id] = known_at_s, heard_at_s
            session.silent_since_s = known_at_s if self.fails() else heard_at_s
            self._expire_after(session.silent_since_s + session.timeout_s - now_s)

    def unmute(self, session_id: int) -> None:
        """Receive messages of the session again, if it exists."""
        session = self._sessions.get(session_id)
        if session is not None and session.silent_since_s is not None:
            # Its follower runs, and has reported the earlier activity meanwhile.
            session.silent_since_s, now_s = None, self._clock()
            self._reported_at_s[session_id] = self._reported(
                session_id, [self._heard_at_s[session_id]], now_s
            )
            self._heard_at_s[session_id] = now_s

    def expire_silent(self) -> tuple[int, ...]:
        """Expire the sessions whose timeout has passed, unless the service is down."""
        return () if self._down else super().expire_silent()

    def apply(self, session_id: int, operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        self._hear(session_id)
        return super().apply(session_id, operations)

    def sync(self, session_id: int) -> None:
        """Sync, which is activity of the session if its server belongs to the ensemble."""
        super().sync(session_id)
        if self._sessions[session_id].server.in_ensemble:
            self._hear(session_id)

    def _hear(self, session_id: int) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.silent_since_s is None:
            now_s = self._clock()
            self._reported_at_s[session_id] = self._known_at_s(session_id, now_s)
            self._heard_at_s[session_id] = now_s

    def _hearings(self, session_id: int, by_s: float) -> list[float]:
        """Return the last times of activity: the last request, or the last two pings after it."""
        heard_at_s, ping_s = self._heard_at_s[session_id], self._sessions[session_id].timeout_s / 3
        pings = int((by_s - heard_at_s) / ping_s)
        return [heard_at_s + number * ping_s for number in range(max(pings - 1, 0), pings + 1)]

    def _known_at_s(self, session_id: int, by_s: float) -> float:
        """Return the time of the last report of a session that was active until ``by_s``."""
        return self._reported(session_id, self._hearings(session_id, by_s), by_s)

    def _reported(self, session_id: int, hearings: Sequence[float], by_s: float) -> float:
        """Return the time of the last report until ``by_s`` of activity at ``hearings``."""
        if not self.half_tick_s:
            return hearings[-1]
        reports = [math.ceil(one / self.half_tick_s) * self.half_tick_s for one in hearings]
        made = [one for one in reports if one <= by_s]
        return max(made, default=self._reported_at_s[session_id])

    def _expire_after(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(max(delay_s, 0.0) + 0.001, self.expire_silent)

    def _adopt(self, draft: Draft) -> None:
        elected = draft.changes.get(znodes.LEADER)
        before = self.main.tree.get(znodes.LEADER)
        if elected and (before is None or before.node.stat.czxid != elected.node.stat.czxid):
            self.epochs.append(decode_leader(znodes.LEADER, elected.node.data).epoch)
        if self.watchers:
            changes = [
                (path, self.main.tree.get(path), node) for path, node in draft.changes.items()
            ]
            super()._adopt(draft)
            for path, was, now in changes:
                for watcher in self.watchers:
                    watcher(path, was, now)
        else:
            super()._adopt(draft)
        loop = asyncio.get_running_loop()
        for server, lag_s in self._lags_s.items():
            loop.call_later(lag_s, server.apply_next)
