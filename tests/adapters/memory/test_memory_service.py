import pytest
from coordination_worlds import connected

from loadmanager.ports.coordination import Connection, Create, Disconnected, SessionState
from tests.testbed.memory import MemoryCoordination, MemoryService


class HandClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_a_silent_session_expires_when_its_time_is_up() -> None:
    clock = HandClock()
    service = MemoryService(clock=clock)
    silent = await connected(MemoryCoordination(service, timeout_s=10))
    talking = await connected(MemoryCoordination(service, timeout_s=10))
    await silent.create("/silent", b"", ephemeral=True)
    await talking.create("/talking", b"", ephemeral=True)
    clock.now_s = 100.0
    assert isinstance(silent, MemoryCoordination)
    silent.suspend()
    clock.now_s = 109.9
    assert service.expire_silent() == ()
    clock.now_s = 110.0
    assert service.expire_silent() == (silent.session.session_id,)
    assert list(service.dump()) == ["/talking"]
    assert silent.session.connection is Connection.SUSPENDED
    told: list[SessionState] = []
    silent.on_session(told.append)
    silent.reconnect()
    assert [state.connection for state in told] == [Connection.LOST, Connection.CONNECTED]


async def test_all_locks_of_an_ended_session_go_in_one_transaction() -> None:
    service = MemoryService()
    session = await connected(MemoryCoordination(service))
    for name in ("b", "a", "c"):
        await session.create(f"/locks/{name}", b"", ephemeral=True)
    before = service.zxid
    await session.close()
    assert service.zxid == before + 1
    assert list(service.dump()) == ["/locks"]
    assert service.session_ids == ()


@pytest.mark.parametrize(("turn_of_the_cut", "applied"), [(1, False), (2, True)])
async def test_where_a_cut_is_decides_what_applies(turn_of_the_cut: int, applied: bool) -> None:
    service = MemoryService()
    turns = 0

    async def cut() -> None:
        nonlocal turns
        turns += 1
        if turns == turn_of_the_cut:
            session.suspend()

    session = MemoryCoordination(service, turn=cut)
    await connected(session)
    with pytest.raises(Disconnected, match="before the reply"):
        await session.commit([Create("/a", b"")])
    assert ("/a" in service.dump()) is applied
