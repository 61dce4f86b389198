"""How much a real server takes at once: what the sidecar sends at most, and not a byte more."""

import pytest
from coordination_worlds import ZooKeeperWorld

from loadmanager.adapters.zookeeper import ZooKeeperCoordination
from loadmanager.ports.coordination import Create, SetData, TooLarge

pytestmark = pytest.mark.zookeeper
OVERHEAD_BYTES = 128


def _commit(path: str, size_bytes: int) -> list[Create | SetData]:
    return [
        SetData("/list", bytes(size_bytes - 2 * OVERHEAD_BYTES - len(path) - len("/list"))),
        Create(path, b"", ephemeral=True),
    ]


async def test_the_largest_commit_is_taken_and_a_larger_one_ends_no_session(
    session: ZooKeeperCoordination, world: ZooKeeperWorld
) -> None:
    before = session.session
    await session.create("/list", b"")
    root = len(world.root)
    most = session.max_request_bytes - 2 * root
    await session.commit(_commit("/a", most))
    with pytest.raises(TooLarge) as refused:
        await session.commit(_commit("/b", most + 1))
    assert refused.value.size_bytes == refused.value.limit_bytes + 1
    with pytest.raises(TooLarge):
        await session.set("/list", bytes(session.max_request_bytes))
    assert await session.get("/a") is not None
    assert await session.get("/b") is None
    assert session.session == before
