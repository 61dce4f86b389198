"""Each request is told of: what it was, how it ended, how long it took."""

import pytest

from loadmanager.adapters.coordination.client import LinkedCoordination
from loadmanager.adapters.coordination.counted import counted
from loadmanager.ports.coordination import Check, CommitRejected, NodeExists, NodeMissing
from tests.testbed.memory.client import next_turn
from tests.testbed.memory.link import MemoryLink
from tests.testbed.memory.service import MemoryService


class Told:
    """What the link told, in order; its clock gains a second a reading."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, float]] = []
        self._now_s = 0.0

    def clock_s(self) -> float:
        self._now_s += 1.0
        return self._now_s

    def observe(self, kind: str, result: str, seconds: float) -> None:
        self.requests.append((kind, result, seconds))


async def test_every_request_is_told_with_its_kind_result_and_seconds() -> None:
    told = Told()
    link = counted(
        MemoryLink(MemoryService(), timeout_s=10.0, turn=next_turn), told.observe, told.clock_s
    )
    coordination = LinkedCoordination(link, chroot="", timeout_s=10.0)
    await coordination.start()
    while not coordination.session.session_id:
        await next_turn()
    await coordination.create("/a", b"1")
    with pytest.raises(NodeExists):
        await coordination.create("/a", b"2")
    with pytest.raises(NodeMissing):
        await coordination.set("/b", b"")
    with pytest.raises(CommitRejected):
        await coordination.commit([Check("/a", 7)])
    await coordination.heartbeat()
    await coordination.sync("/a")
    await coordination.delete("/a")
    assert await coordination.get("/a") is None
    assert await coordination.children("/a") == ()
    await coordination.close()
    assert told.requests == [
        ("create", "ok", 1.0),
        ("create", "node_exists", 1.0),
        ("set", "node_missing", 1.0),
        ("commit", "commit_rejected", 1.0),
        ("heartbeat", "ok", 1.0),
        ("sync", "ok", 1.0),
        ("delete", "ok", 1.0),
        ("get", "node_missing", 1.0),
        ("children", "node_missing", 1.0),
    ]
