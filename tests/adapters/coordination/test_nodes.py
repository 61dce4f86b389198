import pytest
from coordination_worlds import World, connected

from loadmanager.core.errors import InvalidName
from loadmanager.ports.coordination import (
    Coordination,
    CoordinationError,
    Node,
    NodeExists,
    NodeMissing,
    NotEmpty,
    VersionMismatch,
)


async def test_a_created_node_reads_back_with_the_stat_it_was_created_with(
    session: Coordination,
) -> None:
    stat = await session.create("/a", b"one")
    assert stat.version == 0
    assert stat.czxid == stat.mzxid > 0
    assert stat.ephemeral_owner == 0
    assert await session.get("/a") == Node(b"one", stat)


async def test_an_empty_node_reads_back_empty(session: Coordination) -> None:
    stat = await session.create("/a", b"")
    assert await session.get("/a") == Node(b"", stat)


async def test_a_missing_node_reads_as_none_and_without_children(session: Coordination) -> None:
    assert await session.get("/none/of/it") is None
    assert await session.children("/none/of/it") == ()


async def test_missing_parents_are_created_persistent_and_empty(session: Coordination) -> None:
    await session.create("/a/b/c", b"x", ephemeral=True)
    parent = await session.get("/a/b")
    assert parent is not None
    assert (parent.data, parent.stat.ephemeral_owner) == (b"", 0)


async def test_a_persistent_node_cannot_be_created_twice(session: Coordination) -> None:
    await session.create("/a", b"x")
    with pytest.raises(NodeExists, match="/a: exists"):
        await session.create("/a", b"x")


async def test_a_lock_belongs_to_the_session_that_created_it(session: Coordination) -> None:
    stat = await session.create("/lock", b"me", ephemeral=True)
    assert stat.ephemeral_owner == session.session.session_id


async def test_a_lock_asked_for_twice_is_granted_twice(session: Coordination) -> None:
    first = await session.create("/lock", b"me", ephemeral=True)
    assert await session.create("/lock", b"me", ephemeral=True) == first


async def test_a_lock_with_other_content_is_not_granted_again(session: Coordination) -> None:
    await session.create("/lock", b"me at epoch 1", ephemeral=True)
    with pytest.raises(NodeExists, match=f"session {session.session.session_id:#x}"):
        await session.create("/lock", b"me at epoch 2", ephemeral=True)


async def test_somebody_elses_lock_is_not_granted_even_with_equal_content(
    session: Coordination, other: Coordination
) -> None:
    await session.create("/lock", b"me", ephemeral=True)
    with pytest.raises(NodeExists, match=f"session {session.session.session_id:#x}"):
        await other.create("/lock", b"me", ephemeral=True)


async def test_a_persistent_node_is_no_lock(session: Coordination) -> None:
    await session.create("/lock", b"me")
    with pytest.raises(NodeExists, match="persistent"):
        await session.create("/lock", b"me", ephemeral=True)


async def test_a_lock_cannot_have_children(session: Coordination) -> None:
    await session.create("/lock", b"me", ephemeral=True)
    with pytest.raises(CoordinationError):
        await session.create("/lock/child", b"")


async def test_set_counts_versions_and_moves_mzxid_but_not_czxid(session: Coordination) -> None:
    created = await session.create("/a", b"one")
    changed = await session.set("/a", b"two", version=0)
    assert changed.version == 1
    assert changed.czxid == created.czxid
    assert changed.mzxid > created.mzxid
    assert await session.get("/a") == Node(b"two", changed)


async def test_set_accepts_any_version_unless_told_one(session: Coordination) -> None:
    await session.create("/a", b"one")
    await session.set("/a", b"two")
    assert (await session.set("/a", b"three")).version == 2


async def test_set_refuses_another_version(session: Coordination) -> None:
    await session.create("/a", b"one")
    with pytest.raises(VersionMismatch, match="/a"):
        await session.set("/a", b"two", version=1)
    node = await session.get("/a")
    assert node is not None
    assert node.data == b"one"


async def test_set_refuses_a_missing_node(session: Coordination) -> None:
    with pytest.raises(NodeMissing, match="/a"):
        await session.set("/a", b"x")


async def test_delete_removes_the_node_from_its_parent(session: Coordination) -> None:
    await session.create("/a/b", b"")
    await session.delete("/a/b", version=0)
    assert await session.get("/a/b") is None
    assert await session.children("/a") == ()


async def test_delete_says_what_stands_against_it(session: Coordination) -> None:
    await session.create("/a/b", b"")
    with pytest.raises(NodeMissing, match="/none"):
        await session.delete("/none")
    with pytest.raises(VersionMismatch, match="/a/b"):
        await session.delete("/a/b", version=3)
    with pytest.raises(NotEmpty, match="/a"):
        await session.delete("/a")


async def test_a_recreated_node_starts_at_version_0_with_a_larger_czxid(
    session: Coordination,
) -> None:
    first = await session.create("/a", b"")
    await session.set("/a", b"changed")
    await session.delete("/a")
    second = await session.create("/a", b"")
    assert second.version == 0
    assert second.czxid > first.czxid


async def test_children_are_sorted(session: Coordination) -> None:
    for name in ("b", "c", "a"):
        await session.create(f"/folder/{name}", b"")
    assert await session.children("/folder") == ("a", "b", "c")


async def test_ensure_creates_what_is_missing_and_leaves_what_is_there(
    session: Coordination,
) -> None:
    await session.create("/a", b"content")
    await session.ensure("/a/b/c")
    await session.ensure("/a/b/c")
    assert await session.children("/a/b") == ("c",)
    node = await session.get("/a")
    assert node is not None
    assert node.data == b"content"


async def test_what_one_session_wrote_another_reads_after_a_sync(
    session: Coordination, other: Coordination
) -> None:
    stat = await session.create("/a", b"x")
    await other.sync("/a")
    assert await other.get("/a") == Node(b"x", stat)


async def test_a_heartbeat_returns_while_the_service_answers(session: Coordination) -> None:
    await session.heartbeat()
    await session.sync("/not/there")


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b", "/a/../b", "/./a", "/a\n"])
async def test_a_path_that_zookeeper_would_refuse_is_named(
    session: Coordination, path: str
) -> None:
    with pytest.raises(InvalidName, match="znode path"):
        await session.create(path, b"")
    with pytest.raises(InvalidName, match="znode path"):
        session.watch(path, print)


async def test_content_that_would_break_the_connection_is_refused_before(
    session: Coordination,
) -> None:
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
