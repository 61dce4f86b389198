import pytest

from loadmanager.ports.coordination import (
    Check,
    CommitRejected,
    CoordinationError,
    Create,
    Delete,
    NodeExists,
    NodeMissing,
    NotEmpty,
    Operation,
    SetData,
    VersionMismatch,
)
from loadmanager.ports.session import Coordination, counted
from tests.testbed.memory.client import next_turn
from tests.testbed.memory.link import MemoryLink
from tests.testbed.memory.service import MemoryService


async def test_a_commit_applies_all_its_operations(session: Coordination) -> None:
    await session.create("/old", b"")
    await session.create("/kept", b"before")
    stats = await session.commit(
        [Check("/kept", 0), SetData("/kept", b"after", 0), Create("/new", b"n"), Delete("/old", 0)]
    )
    assert [stat is not None for stat in stats] == [False, True, False, False]
    kept, new, old = [await session.get(path) for path in ("/kept", "/new", "/old")]
    assert kept is not None
    assert new is not None
    assert (kept.data, kept.stat) == (b"after", stats[1])
    assert new.data == b"n"
    assert old is None


async def test_a_lock_and_a_list_of_one_commit_carry_one_zxid(session: Coordination) -> None:
    await session.create("/owned", b"[]", ephemeral=True)
    stats = await session.commit([Create("/lock", b"", ephemeral=True), SetData("/owned", b"[1]")])
    lock = await session.get("/lock")
    assert lock is not None
    assert stats[1] is not None
    assert stats[1].mzxid == lock.stat.czxid
    assert lock.stat.ephemeral_owner == session.session.session_id


async def test_operations_of_a_commit_see_those_before_them(session: Coordination) -> None:
    await session.create("/a", b"old")
    await session.set("/a", b"older")
    await session.commit(
        [Delete("/a", 1), Create("/a", b"new"), Create("/a/b", b""), Check("/a", 0)]
    )
    node = await session.get("/a")
    assert node is not None
    assert (node.data, node.stat.version) == (b"new", 0)
    assert await session.children("/a") == ("b",)


@pytest.mark.parametrize(
    ("culprit", "cause"),
    [
        (Create("/there", b""), NodeExists),
        (Create("/none/child", b""), NodeMissing),
        (SetData("/there", b"", 7), VersionMismatch),
        (SetData("/none", b""), NodeMissing),
        (Delete("/there", 7), VersionMismatch),
        (Delete("/none"), NodeMissing),
        (Delete("/folder"), NotEmpty),
        (Check("/there", 7), VersionMismatch),
        (Check("/none", 0), NodeMissing),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_rejected_commit_names_the_culprit_and_applies_nothing(
    session: Coordination, culprit: Operation, cause: type[CoordinationError], place: int
) -> None:
    await session.create("/there", b"before")
    await session.create("/folder/child", b"")
    operations: list[Operation] = [SetData("/there", b"after"), Create("/new", b"")]
    operations.insert(place, culprit)
    with pytest.raises(CommitRejected, match=f"operation {place}: .*/(there|none|f)") as rejected:
        await session.commit(operations)
    assert rejected.value.index == place
    assert type(rejected.value.cause) is cause
    there = await session.get("/there")
    assert there is not None
    assert (there.data, there.stat.version) == (b"before", 0)
    assert await session.get("/new") is None


async def test_an_empty_commit_changes_nothing(session: Coordination) -> None:
    assert await session.commit([]) == ()


async def test_the_epoch_fences_a_former_leader(session: Coordination, other: Coordination) -> None:
    """A recreated /leader has version 0 again, so a check of it lets anybody through."""
    await session.create("/epoch", b"")
    await session.create("/leader", b"former", ephemeral=True)
    former_epoch = (await session.set("/epoch", b"")).version
    await session.delete("/leader")
    await other.create("/leader", b"present", ephemeral=True)
    present_epoch = (await other.set("/epoch", b"")).version
    await session.commit([Check("/leader", 0), Create("/let-through", b"")])
    with pytest.raises(CommitRejected, match="operation 0") as rejected:
        await session.commit([Check("/epoch", former_epoch), Create("/fenced", b"")])
    assert isinstance(rejected.value.cause, VersionMismatch)
    await other.commit([Check("/epoch", present_epoch), Create("/allowed", b"")])
    assert await session.get("/fenced") is None


async def test_a_commit_too_large_for_the_service_is_refused_before(session: Coordination) -> None:
    with pytest.raises(CoordinationError, match="expected at most 1048575"):
        await session.commit([Create(f"/{i}", b"x" * 300_000) for i in range(4)])
    await session.heartbeat()
    assert await session.get("/0") is None


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
    coordination = Coordination(link, chroot="", timeout_s=10.0)
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
