"""The in-process service as a cluster meets it: sessions timed out, outages, and watchers."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loadmanager.adapters.memory import MemoryService
from loadmanager.adapters.memory.server import Server
from loadmanager.adapters.memory.tree import Draft, Znode, drafted
from loadmanager.core import znodes
from loadmanager.core.wire import decode_leader
from loadmanager.ports import Delete, Operation, Stat

_EPOCH_BITS: Final = 32

NodeChanged = Callable[[str, Znode | None, Znode | None], None]
"""Called with a path, the node before and the node after, None where there is none."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the ensemble held at one moment."""

    zxid: int
    tree: Mapping[str, Znode]


class TimedService(MemoryService):
    """Expires sessions by virtual time, counted from when its leader last knew of each.

    Clients are connected to followers, and ping every third of their timeout. A follower reports
    every ``half_tick_s`` from whom it has heard since the report before, and the leader counts
    from that report; where this is 0, from when the follower hears. A request that is handed on
    to the leader does not count there, a transaction neither. When the connection of a client
    breaks, its follower may fail too (``fails``) and makes no further report; if it does not,
    the time runs from the last request.

    While the service is down no time counts, and when it is up again every session has its
    whole timeout, as with a new leader of an ensemble. That leader counts transactions from its
    own epoch on, in the upper half of their ids. ``epochs`` are those of every leader elected;
    ``watchers`` get each change of a node in the moment it is made, before any client.
    """

    def __init__(self) -> None:
        super().__init__(clock=lambda: asyncio.get_running_loop().time())
        self.half_tick_s = 0.0
        self.fails: Callable[[], bool] = lambda: True
        self.restored_at_s = 0.0
        """When older data took the place of the present ones."""
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
        """Every node by path, in no order: to look at, not to keep."""
        return self.main.tree

    def go_down(self) -> None:
        """Lose the majority."""
        self._down = True

    def come_up(self) -> None:
        """Have a majority again, with a new leader: each session's time starts over."""
        self._down = False
        self._zxid = ((self._zxid >> _EPOCH_BITS) + 1) << _EPOCH_BITS
        now_s = self._clock()
        for session_id, session in self._sessions.items():
            self._heard_at_s[session_id] = self._reported_at_s[session_id] = now_s
            if session.silent_since_s is not None:
                session.silent_since_s = now_s
                self._expire_after(session.timeout_s)

    def snapshot(self) -> Snapshot:
        """Return what a restore needs: nodes are never changed, so this is a copy."""
        return Snapshot(self._zxid, dict(self.main.tree))

    def restore(self, snapshot: Snapshot) -> None:
        """Begin with older data, under a new leader of the ensemble; ephemeral nodes are gone.

        Only for an ensemble whose clients have all been stopped, and with one server.
        """
        tree = dict(snapshot.tree)
        draft = Draft(tree, snapshot.zxid, 0)
        ephemeral = [path for path, one in tree.items() if one.node.stat.ephemeral_owner]
        drafted(draft, [Delete(path) for path in sorted(ephemeral)])
        draft.apply_to(tree)
        self.main.tree = tree
        self._zxid = self.main.zxid = ((snapshot.zxid >> _EPOCH_BITS) + 1) << _EPOCH_BITS
        self.epochs.clear()
        self.restored_at_s = self._clock()

    def lag(self, server: Server, lag_s: float) -> None:
        """Let a server apply each transaction so much later than it is committed."""
        self._lags_s[server] = lag_s
        server.hold()

    def hurry(self) -> None:
        """Let all servers catch up, and fall behind no more."""
        lags_s, self._lags_s = self._lags_s, {}
        for server in lags_s:
            server.catch_up()

    def lag_s_of(self, server: Server) -> float:
        """Return how late a server applies transactions."""
        return self._lags_s.get(server, 0.0)

    def open_session(self, timeout_s: float, expired: Callable[[], None]) -> int:
        """Begin a session, which the leader does itself."""
        session_id = super().open_session(timeout_s, expired)
        self._heard_at_s[session_id] = self._reported_at_s[session_id] = self._clock()
        return session_id

    def resume_session(self, session_id: int) -> None:
        """Take up a session on a new connection: its follower asks the leader whether it lives."""
        super().resume_session(session_id)
        self._heard_at_s[session_id] = self._reported_at_s[session_id] = self._clock()

    def lives(self, session_id: int) -> bool:
        """Return whether the session has not ended."""
        return session_id in self._sessions

    def silence(self, session_id: int) -> None:
        """Let the session's time run from the last request that was heard."""
        session = self._sessions.get(session_id)
        muted_since_s = session.silent_since_s if session else None
        super().silence(session_id)
        if session is not None and muted_since_s is not None:
            session.silent_since_s = muted_since_s
        elif session is not None:
            session.silent_since_s = None
            self.mute(session_id)

    def mute(self, session_id: int) -> None:
        """Hear nothing of a session whose connection stands: its client is frozen or cut off."""
        session = self._sessions.get(session_id)
        if session is not None and session.silent_since_s is None:
            now_s = self._clock()
            known_at_s = self._known_at_s(session_id, now_s)
            heard_at_s = self._hearings(session_id, now_s)[-1]
            self._reported_at_s[session_id], self._heard_at_s[session_id] = known_at_s, heard_at_s
            session.silent_since_s = known_at_s if self.fails() else heard_at_s
            self._expire_after(session.silent_since_s + session.timeout_s - now_s)

    def unmute(self, session_id: int) -> None:
        """Hear the session again, if it lives."""
        session = self._sessions.get(session_id)
        if session is not None and session.silent_since_s is not None:
            # Its follower lives, and has reported meanwhile what it had heard.
            session.silent_since_s, now_s = None, self._clock()
            self._reported_at_s[session_id] = self._reported(
                session_id, [self._heard_at_s[session_id]], now_s
            )
            self._heard_at_s[session_id] = now_s

    def expire_silent(self) -> tuple[int, ...]:
        """Expire what was silent for its timeout, unless the service is down."""
        return () if self._down else super().expire_silent()

    def apply(self, session_id: int, operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        """Note that the session was heard."""
        self._hear(session_id)
        return super().apply(session_id, operations)

    def sync(self, session_id: int) -> None:
        """Note that the session was heard, if this server is heard itself."""
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
        """Return when the follower last heard of the session: the last request, and pings since."""
        heard_at_s, ping_s = self._heard_at_s[session_id], self._sessions[session_id].timeout_s / 3
        pings = int((by_s - heard_at_s) / ping_s)
        return [heard_at_s + number * ping_s for number in range(max(pings - 1, 0), pings + 1)]

    def _known_at_s(self, session_id: int, by_s: float) -> float:
        """Return when the leader last heard of a session that was heard until ``by_s``."""
        return self._reported(session_id, self._hearings(session_id, by_s), by_s)

    def _reported(self, session_id: int, hearings: Sequence[float], by_s: float) -> float:
        """Return when the last report was made that named the session."""
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
