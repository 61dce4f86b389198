import pytest
from coordination_worlds import World, connected

from loadmanager.core.errors import InvalidName
from loadmanager.ports.coordination import (
    CoordinationError,
    Node,
    NodeExists,
    NodeMissing,
    NotEmpty,
    VersionMismatch,
)
from loadmanager.ports.session import Coordination


async def test_a_created_node_has_the_stat_it_was_created_with(session: Coordination) -> None:
    for path, content in (("/a", b"one"), ("/b", b"")):
        stat = await session.create(path, content)
        assert stat.version == 0
        assert stat.czxid == stat.mzxid > 0
        assert stat.ephemeral_owner == 0
        assert await session.get(path) == Node(content, stat)
    assert await session.get("/none/of/it") is None
    assert await session.children("/none/of/it") == ()


async def test_missing_parents_are_created_persistent_and_empty(session: Coordination) -> None:
    await session.create("/a/b/c", b"x", ephemeral=True)
    parent = await session.get("/a/b")
    assert parent is not None
    assert (parent.data, parent.stat.ephemeral_owner) == (b"", 0)
    await session.set("/a", b"content")
    for _ in range(2):
        await session.ensure("/a/d/e")
    assert await session.children("/a/d") == ("e",)
    kept = await session.get("/a")
    assert kept is not None
    assert kept.data == b"content"


async def test_a_lock_belongs_to_its_session_and_is_granted_again(session: Coordination) -> None:
    stat = await session.create("/lock", b"me", ephemeral=True)
    assert stat.ephemeral_owner == session.session.session_id
    assert await session.create("/lock", b"me", ephemeral=True) == stat
    with pytest.raises(CoordinationError):
        await session.create("/lock/child", b"")


@pytest.mark.parametrize(
    ("first", "is_lock", "second", "asks_lock", "by_other", "said"),
    [
        (b"x", False, b"x", False, False, "/a: exists"),
        (b"me at epoch 1", True, b"me at epoch 2", True, False, "session {}"),
        (b"me", True, b"me", True, True, "session {}"),
        (b"me", False, b"me", True, False, "persistent"),
    ],
    ids=["persistent twice", "a lock of another content", "a lock of somebody else", "no lock"],
)
async def test_what_is_there_is_not_granted(
    session: Coordination,
    other: Coordination,
    *,
    first: bytes,
    is_lock: bool,
    second: bytes,
    asks_lock: bool,
    by_other: bool,
    said: str,
) -> None:
    await session.create("/a", first, ephemeral=is_lock)
    with pytest.raises(NodeExists, match=said.format(f"{session.session.session_id:#x}")):
        await (other if by_other else session).create("/a", second, ephemeral=asks_lock)


async def test_set_counts_versions_and_moves_mzxid_but_not_czxid(session: Coordination) -> None:
    created = await session.create("/a", b"one")
    changed = await session.set("/a", b"two", version=0)
    assert changed.version == 1
    assert changed.czxid == created.czxid
    assert changed.mzxid > created.mzxid
    assert await session.get("/a") == Node(b"two", changed)
    assert (await session.set("/a", b"three")).version == 2
    await session.delete("/a")
    again = await session.create("/a", b"")
    assert (again.version, again.czxid > created.czxid) == (0, True)


async def test_refused_changes_say_why_and_change_nothing(session: Coordination) -> None:
    stat = await session.create("/a/b", b"one")
    for asked, error, path in (
        (session.set("/a/b", b"two", version=1), VersionMismatch, "/a/b"),
        (session.set("/none", b"x"), NodeMissing, "/none"),
        (session.delete("/none"), NodeMissing, "/none"),
        (session.delete("/a/b", version=3), VersionMismatch, "/a/b"),
        (session.delete("/a"), NotEmpty, "/a"),
    ):
        with pytest.raises(error, match=path):
            await asked
    assert await session.get("/a/b") == Node(b"one", stat)
    await session.delete("/a/b", version=0)
    assert await session.get("/a/b") is None
    assert await session.children("/a") == ()


async def test_children_are_sorted(session: Coordination) -> None:
    for name in ("b", "c", "a"):
        await session.create(f"/folder/{name}", b"")
    assert await session.children("/folder") == ("a", "b", "c")


async def test_a_sync_shows_what_others_wrote(session: Coordination, other: Coordination) -> None:
    stat = await session.create("/a", b"x")
    await other.sync("/a")
    assert await other.get("/a") == Node(b"x", stat)
    await other.heartbeat()
    await other.sync("/not/there")


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b", "/a/../b", "/./a", "/a\n"])
async def test_a_path_that_zookeeper_refuses_is_named(session: Coordination, path: str) -> None:
    with pytest.raises(InvalidName, match="znode path"):
        await session.create(path, b"")
    with pytest.raises(InvalidName, match="znode path"):
        session.watch(path, print)


async def test_content_that_breaks_the_connection_is_refused(session: Coordination) -> None:
    with pytest.raises(CoordinationError, match="expected at most 1048575"):
        await session.create("/a", b"x" * 1_048_576)
    almost = b"x" * 1_048_000
    await session.create("/a", almost)
    await session.set("/a", almost)
    await session.heartbeat()


async def test_a_chroot_is_created_and_hides_everything_else(world: World) -> None:
    inside = await connected(world.make(chroot="/deep/down"))
    outside = await connected(world.make())
    await inside.create("/a", b"x", ephemeral=True)
    assert await inside.children("/") == ("a",)
    assert await outside.children("/deep/down") == ("a",)
    root = await inside.get("/")
    assert root is not None
    assert root.data == b""
