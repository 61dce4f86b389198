import asyncio
from collections.abc import Callable
from typing import Any

from coordination_worlds import World, connected
from waiting import eventually

from loadmanager.ports.coordination import (
    Connection,
    CoordinationError,
    Disconnected,
    Node,
    Stat,
    Trigger,
)
from loadmanager.ports.session import Coordination
from loadmanager.ports.watches import WatchTable
from tests.testbed.memory.link import MemoryLink
from tests.testbed.memory.service import MemoryService


def contents(told: list[Node | None]) -> list[bytes | None]:
    return [None if node is None else node.data for node in told]


def last(told: list[Any], value: object) -> Callable[[], bool]:
    return lambda: bool(told) and told[-1] == value


def has(told: list[Node | None], content: bytes) -> Callable[[], bool]:
    return lambda: contents(told)[-1:] == [content]


async def watched(session: Coordination, path: str, first: list[bytes | None]) -> list[Node | None]:
    """Return what a watch tells from now on, once it has told what is there."""
    told: list[Node | None] = []
    session.watch(path, told.append)
    await eventually(lambda: contents(told) == first)
    return told


async def reconnect(world: World, session: Coordination) -> None:
    world.cut(session)
    await eventually(lambda: session.session.connection is not Connection.CONNECTED)
    world.mend(session)
    await eventually(lambda: session.session.connection is Connection.CONNECTED)


def count_reads(session: Coordination) -> list[str]:
    """Return a list to which the path of each further read of a watch is appended."""
    link: Any = session._link
    chroot: str = session._chroot
    read: list[str] = []

    def counting(send: Callable[..., Any]) -> Callable[..., Any]:
        def request(path: str, trigger: Trigger | None = None) -> Any:
            if trigger is not None:
                read.append(path.removeprefix(chroot))
            return send(path, trigger)

        return request

    for kind in ("get", "exists", "children"):
        setattr(link, kind, counting(getattr(link, kind)))
    return read


async def test_it_tells_what_is_and_each_change(session: Coordination, other: Coordination) -> None:
    told = await watched(session, "/a/b", [None])
    await other.create("/a/b", b"one")
    await eventually(lambda: contents(told) == [None, b"one"])
    await other.set("/a/b", b"two")
    await eventually(lambda: contents(told) == [None, b"one", b"two"])
    stat = await other.set("/a/b", b"two")  # It leaves the content alone.
    await eventually(last(told, Node(b"two", stat)))
    await other.delete("/a/b")
    await eventually(lambda: contents(told) == [None, b"one", b"two", b"two", None])


async def test_the_last_of_a_burst_is_told(session: Coordination, other: Coordination) -> None:
    told: list[Node | None] = []
    await other.create("/a", b"")
    session.watch("/a", told.append)
    for i in range(50):
        await other.set("/a", str(i).encode())
    await eventually(lambda: contents(told)[-1:] == [b"49"])
    assert len(told) <= 51


class Patience:
    """Postpones reads while it is ``patient``, and counts how often."""

    def __init__(self, *, patient: bool) -> None:
        self.patient = patient
        self.postponed = 0

    def __call__(self) -> bool:
        self.postponed += self.patient
        return self.patient


async def test_what_is_postponed_is_read_later(session: Coordination, other: Coordination) -> None:
    await other.create("/a", b"first")
    told: list[Node | None] = []
    patience = Patience(patient=False)
    patience.patient = True
    watch = session.watch("/a", told.append, postpone=patience)
    await session.sync("/a")
    assert (told, patience.postponed) == ([], 1)
    watch.read()
    await eventually(lambda: contents(told) == [b"first"])
    patience.postponed = 0
    for content in (b"second", b"third"):
        await other.set("/a", content)
    await eventually(lambda: patience.postponed == 1)
    await session.sync("/a")
    assert contents(told) == [b"first"]
    watch.read()
    await eventually(lambda: contents(told) == [b"first", b"third"])
    await other.set("/a", b"fourth")
    await eventually(lambda: patience.postponed == 2)
    watch.read()
    await eventually(lambda: contents(told) == [b"first", b"third", b"fourth"])
    watch.close()
    watch.read()


async def test_what_postpones_delays_no_other(session: Coordination, other: Coordination) -> None:
    patient: list[Node | None] = []
    prompt: list[Node | None] = []
    session.watch("/a", patient.append, postpone=lambda: True)
    session.watch("/a", prompt.append)
    await eventually(lambda: contents(prompt) == [None])
    await other.create("/a", b"one")
    await eventually(lambda: contents(prompt) == [None, b"one"])
    assert contents(patient) == [None, b"one"]


async def test_what_a_watch_postponed_stays_postponed_after_a_reconnect_until_it_is_read(
    world: World, session: Coordination, other: Coordination
) -> None:
    await other.create("/a", b"one")
    told: list[Node | None] = []
    patience = Patience(patient=False)
    watch = session.watch("/a", told.append, postpone=patience)
    await eventually(lambda: contents(told) == [b"one"])
    patience.patient = True
    await other.set("/a", b"two")
    await eventually(lambda: patience.postponed == 1)
    await reconnect(world, session)
    await session.sync("/a")
    assert (patience.postponed, contents(told)) == (1, [b"one"])
    watch.read()
    await eventually(lambda: contents(told) == [b"one", b"two"])
    await other.set("/a", b"three")
    await eventually(lambda: patience.postponed == 2)


async def test_a_new_session_asks_again_what_a_watch_postpones(
    world: World, session: Coordination, other: Coordination
) -> None:
    await other.create("/a", b"one")
    told: list[Node | None] = []
    patience = Patience(patient=True)
    session.watch("/a", told.append, postpone=patience)
    assert patience.postponed == 1
    patience.patient = False
    former = session.session.session_id
    await world.expire(session)
    await eventually(lambda: session.session.session_id != former)
    await eventually(lambda: contents(told) == [b"one"])


async def test_after_a_reconnect_what_changed_is_told_and_nothing_else_is_read(
    world: World, session: Coordination, other: Coordination
) -> None:
    nodes = {f"/{name}": name.encode() for name in ("same", "set", "deleted", "again")}
    for path, content in nodes.items():
        await other.create(path, content)
    for folder in ("/still", "/grown", "/gone"):
        await other.create(f"{folder}/a", b"")
    told: dict[str, list[Node | None]] = {path: [] for path in (*nodes, "/missing", "/made")}
    names: dict[str, list[tuple[str, ...]]] = {
        path: [] for path in ("/still", "/grown", "/gone", "/none", "/begun")
    }
    for path, nodes_told in told.items():
        session.watch(path, nodes_told.append)
    for path, names_told in names.items():
        session.watch_children(path, names_told.append)
    await eventually(lambda: all(told.values()) and all(names.values()))
    before = {**{path: len(each) for path, each in told.items()}, **dict.fromkeys(names, 1)}
    world.cut(session)
    await eventually(lambda: session.session.connection is not Connection.CONNECTED)
    await other.set("/set", b"new")
    await other.delete("/deleted")
    await other.delete("/again")
    await other.create("/again", b"other")
    await other.create("/made", b"made")
    await other.create("/grown/b", b"")
    await other.delete("/gone/a")
    await other.delete("/gone")
    await other.create("/begun/a", b"")
    read = count_reads(session)
    world.mend(session)
    await eventually(lambda: session.session.connection is Connection.CONNECTED)
    await eventually(last(names["/begun"], ("a",)))
    await eventually(last(names["/grown"], ("a", "b")))
    await eventually(last(names["/gone"], ()))
    for path, content in {"/set": b"new", "/again": b"other", "/made": b"made"}.items():
        await eventually(has(told[path], content))
    await eventually(lambda: contents(told["/deleted"])[-1] is None)
    assert set(read) == {"/set", "/deleted", "/again", "/made", "/grown", "/gone", "/begun"}
    for path in ("/same", "/missing"):
        assert len(told[path]) == before[path]
    assert (names["/still"], names["/none"]) == ([("a",)], [()])
    # The watches stand again, all of them.
    await other.set("/same", b"changed")
    await other.create("/missing", b"there")
    await other.create("/still/b", b"")
    await other.create("/none/a", b"")
    await other.set("/set", b"newer")
    await eventually(lambda: contents(told["/same"])[-1] == b"changed")
    await eventually(lambda: contents(told["/missing"])[-1] == b"there")
    await eventually(last(names["/still"], ("a", "b")))
    await eventually(last(names["/none"], ("a",)))
    await eventually(lambda: contents(told["/set"])[-1] == b"newer")


async def test_a_change_between_two_breaks_of_the_connection_is_told(
    world: World, session: Coordination, other: Coordination
) -> None:
    """What was asked on a connection whose watches were never set again proves nothing."""
    await other.create("/a", b"one")
    told = await watched(session, "/a", [b"one"])
    whole = session._link.rearm
    refusals = 0

    async def refused(_triggers: object) -> None:
        nonlocal refusals
        refusals += 1
        await session._link.get("/a")  # It sees the change.
        raise Disconnected("broke again")

    session._link.rearm = refused  # type: ignore[assignment, method-assign]
    world.cut(session)
    await eventually(lambda: session.session.connection is not Connection.CONNECTED)
    await other.set("/a", b"two")
    world.mend(session)
    await eventually(lambda: refusals)
    world.cut(session)
    session._link.rearm = whole  # type: ignore[method-assign]
    await asyncio.sleep(0.1)
    world.mend(session)
    # Twice if the change's read is under way when the connection is published.
    await eventually(lambda: contents(told)[-1] == b"two")


async def test_watches_that_the_service_does_not_set_again_are_all_read(
    world: World, session: Coordination, other: Coordination
) -> None:
    await other.create("/a", b"one")
    told = await watched(session, "/a", [b"one"])

    async def refused(_triggers: object) -> None:
        raise CoordinationError("unknown request")

    session._link.rearm = refused  # type: ignore[assignment, method-assign]
    world.cut(session)
    await eventually(lambda: session.session.connection is not Connection.CONNECTED)
    await other.set("/a", b"two")
    world.mend(session)
    await eventually(lambda: contents(told) == [b"one", b"two"])


async def test_thousands_are_set(world: World, session: Coordination, other: Coordination) -> None:
    """They take more than one request of ZooKeeper."""
    folder = "/" + "x" * 100
    told: dict[str, list[Node | None]] = {f"{folder}/{n}": [] for n in range(3000)}
    for path, each in told.items():
        session.watch(path, each.append)
    await eventually(lambda: all(told.values()))
    await reconnect(world, session)
    for path in (f"{folder}/0", f"{folder}/2999"):
        await other.create(path, b"here")
        await eventually(has(told[path], b"here"))
    assert sum(map(len, told.values())) == 3002


async def test_a_change_that_is_told_before_the_read_under_way_ends_is_never_postponed() -> None:
    """What is being read may be older than the change, and nothing would report that again."""
    answers: list[asyncio.Future[Node]] = []

    class SlowLink(MemoryLink):
        async def get(self, path: str, trigger: Trigger | None = None) -> Node:
            del path, trigger
            answers.append(asyncio.get_running_loop().create_future())
            return await answers[-1]

    service = MemoryService()
    table = WatchTable(SlowLink(service, timeout_s=1.0, turn=lambda: asyncio.sleep(0)))
    told: list[Node | None] = []
    patience = Patience(patient=False)
    table.watch("/a", told.append, postpone=patience)
    patience.patient = True
    stat = Stat(version=0, czxid=1, mzxid=1, ephemeral_owner=0)
    await eventually(lambda: len(answers) == 1)
    table.fired("node", "/a")
    answers[0].set_result(Node(b"old", stat))
    await eventually(lambda: len(answers) == 2)
    answers[1].set_result(Node(b"new", stat))
    await eventually(lambda: contents(told) == [b"old", b"new"])
    table.close()


async def test_a_watch_never_tells_less_than_its_caller_knew(session: Coordination) -> None:
    """The read a former watch has under way must not tell a new one of the past."""
    before: list[Node | None] = []
    after: list[Node | None] = []
    session.watch("/lock", before.append)
    await session.create("/lock", b"mine", ephemeral=True)
    session.watch("/lock", after.append)
    await eventually(lambda: contents(after)[-1:] == [b"mine"])
    assert contents(after) == [b"mine"]


async def test_children_are_told_from_the_start(session: Coordination, other: Coordination) -> None:
    told: list[tuple[str, ...]] = []
    session.watch_children("/folder", told.append)
    await eventually(last(told, ()))
    await other.create("/folder/b", b"")
    await eventually(last(told, ("b",)))
    await other.create("/folder/a", b"")
    await eventually(last(told, ("a", "b")))
    await other.delete("/folder/b")
    await eventually(last(told, ("a",)))
    await other.delete("/folder/a")
    await other.delete("/folder")
    await eventually(last(told, ()))
    await other.create("/folder/c", b"")
    await eventually(last(told, ("c",)))


async def test_content_is_no_news_of_children(session: Coordination, other: Coordination) -> None:
    await other.create("/folder/a", b"")
    told: list[tuple[str, ...]] = []
    session.watch_children("/folder", told.append)
    await eventually(last(told, ("a",)))
    await other.set("/folder/a", b"changed")
    await other.create("/folder/b", b"")
    await eventually(last(told, ("a", "b")))
    assert told == [("a",), ("a", "b")]


async def test_closed_watches_may_be_closed(session: Coordination, other: Coordination) -> None:
    silent: list[Node | None] = []
    told: list[Node | None] = []
    watch = session.watch("/a", silent.append)
    session.watch("/a", told.append)
    await eventually(lambda: told and silent)
    watch.close()
    watch.close()
    await other.create("/a", b"x")
    await eventually(lambda: contents(told) == [None, b"x"])
    assert silent == [None]


async def test_a_watch_may_close_and_open_again(session: Coordination, other: Coordination) -> None:
    told: list[Node | None] = []

    def once(node: Node | None) -> None:
        told.append(node)
        watch.close()

    watch = session.watch("/a", once)
    await eventually(lambda: told == [None])
    await other.create("/a", b"x")
    session.watch("/a", told.append)
    await eventually(lambda: contents(told) == [None, b"x"])


async def test_a_watch_closed_before_its_first_read_tells_nothing(session: Coordination) -> None:
    told: list[Node | None] = []
    session.watch("/a", told.append).close()
    await session.create("/a", b"x")
    await session.heartbeat()
    assert told == []


async def test_a_failing_callback_is_reported_and_others_are_told(session: Coordination) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    told: list[Node | None] = []

    def fail(_node: Node | None) -> None:
        raise ValueError("of this test")

    session.watch("/a", fail)
    session.watch("/a", told.append)
    await eventually(lambda: told == [None])
    assert [str(context["exception"]) for context in reported] == ["of this test"]


async def test_it_outlives_expiry(world: World, session: Coordination, other: Coordination) -> None:
    await session.create("/lock", b"mine", ephemeral=True)
    told = await watched(session, "/lock", [b"mine"])
    await world.expire(session)
    await eventually(lambda: contents(told)[-1:] == [None])
    await other.create("/lock", b"theirs", ephemeral=True)
    await eventually(lambda: contents(told)[-1:] == [b"theirs"])


async def test_what_opened_while_suspended_tells_later(world: World, session: Coordination) -> None:
    await session.create("/a", b"x")
    world.cut(session)
    await eventually(lambda: session.session.connection is Connection.SUSPENDED)
    told: list[Node | None] = []
    session.watch("/a", told.append)
    world.mend(session)
    await eventually(lambda: contents(told) == [b"x"])


async def test_the_end_of_sessions_ends_locks(session: Coordination, other: Coordination) -> None:
    await other.create("/lock", b"", ephemeral=True)
    told = await watched(session, "/lock", [b""])
    await other.close()
    await eventually(lambda: contents(told) == [b"", None])


async def test_no_watch_tells_after_close(world: World, other: Coordination) -> None:
    session = await connected(world.make())
    told = await watched(session, "/a", [None])
    await session.close()
    await other.create("/a", b"x")
    await other.heartbeat()
    assert told == [None]
