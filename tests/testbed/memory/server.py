"""One server of the ensemble: what it has applied of what was committed, and its watches.

A server applies transactions in the order in which they were committed. One that has fallen
behind answers reads from an older state at once, notifies watches late, and answers writes and
syncs, which go through the leader, once it has applied them itself: so a session on it sees
what it wrote, and its view never goes back.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from loadmanager.ports.coordination import NodeMissing, Trigger
from tests.testbed.memory.tree import Draft, Tree, Znode


@dataclass(slots=True)
class Triggers:
    """The watches to notify, in the order of the requests: a dict keeps it, a set does not."""

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


class Server:
    """One server of the ensemble, up to date until `hold`.

    ``in_ensemble`` is False for one that lost the others and has not noticed: it still answers
    reads, and nothing that has to go through the leader.
    """

    def __init__(self, tree: Tree, zxid: int) -> None:
        self.tree: dict[str, Znode] = dict(tree)
        self.zxid = zxid
        self.triggers = Triggers()
        self.in_ensemble = True
        self._holding = False
        self._stopped = False
        self._behind: deque[Draft] = deque()
        self._waiting: list[asyncio.Future[None]] = []

    def find(self, path: str) -> Znode:
        znode = self.tree.get(path)
        if znode is None:
            raise NodeMissing(f"{path}: no such node")
        return znode

    def hold(self) -> None:
        self._holding = True

    def leave_ensemble(self) -> None:
        self.in_ensemble = False
        self.hold()

    def receive(self, draft: Draft) -> None:
        self._behind.append(draft)
        if not self._holding:
            self.apply_next()

    def apply_next(self) -> None:
        if not self._behind:
            return
        draft = self._behind.popleft()
        draft.apply_to(self.tree)
        self.zxid = draft.zxid
        for place in draft.touched:
            self.triggers.fire(place)
        self.wake()

    def catch_up(self) -> None:
        self._holding = False
        while self._behind:
            self.apply_next()

    def stop(self) -> None:
        self._stopped = True
        self.wake()

    async def reached(self, zxid: float, connected: Callable[[], bool]) -> None:
        """Return when this server has applied the transaction, in the order of asking.

        Nobody waits longer than the server runs, or than the client is ``connected``: who
        breaks a connection has to `wake` those who wait.
        """
        while self.zxid < zxid and not self._stopped and connected():
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)
