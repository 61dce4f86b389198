from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kazoo.protocol.states import EventType, ZnodeStat

from loadmanager.adapters.coordination.client import LinkedCoordination
from loadmanager.adapters.coordination.link import ArmedTrigger, Link, Observe, Trigger, counted
from loadmanager.adapters.zookeeper.kazoo_client import GatedClient
from loadmanager.adapters.zookeeper.options import ZooKeeperOptions
from loadmanager.adapters.zookeeper.session import KazooSession, rejection
from loadmanager.ports.coordination import (
    Check,
    Create,
    Delete,
    Node,
    Operation,
    SessionState,
    SetData,
    Stat,
)

MOST_REARMED_BYTES: Final = 131_072
"""The paths of one request that sets watches again, as in ZooKeeper's own client."""


@dataclass(frozen=True, slots=True)
class _LoopTrigger:
    """A trigger that kazoo calls on its thread. Equal for equal triggers: kazoo keeps a set."""

    session: KazooSession
    trigger: Trigger

    def __call__(self, event: Any) -> None:
        # NONE reports a lost connection, which the session's state reports as well.
        if event.type != EventType.NONE:
            self.session.on_loop(self.trigger)


class KazooLink:
    def __init__(self, options: ZooKeeperOptions) -> None:
        self._session = KazooSession(options)
        self._private_access_list = options.private_access_list()

    def open(self, changed: Callable[[SessionState], None]) -> None:
        self._session.open(changed)

    async def close(self) -> None:
        await self._session.close()

    async def get(self, path: str, trigger: Trigger | None = None) -> Node:
        watch = self._armed(trigger)
        data, stat = await self._session.ask(path, lambda client: client.get_async(path, watch))
        return Node(data or b"", _stat(stat))

    async def exists(self, path: str, trigger: Trigger | None = None) -> Stat | None:
        watch = self._armed(trigger)
        stat = await self._session.ask(path, lambda client: client.exists_async(path, watch))
        return None if stat is None else _stat(stat)

    async def children(self, path: str, trigger: Trigger | None = None) -> tuple[str, ...]:
        watch = self._armed(trigger)
        names = await self._session.ask(
            path,
            lambda client: client.get_children_async(path, watch),
            possible=lambda names: all(name and "/" not in name for name in names),
        )
        return tuple(sorted(names))

    async def rearm(self, triggers: Sequence[ArmedTrigger]) -> None:
        """Set triggers again, by as many requests as their paths take."""
        await self._session.rearm(_in_requests(triggers), self._on_loop)

    async def sync(self, path: str) -> None:
        await self._session.ask(path, lambda client: client.sync_async(path))

    async def heartbeat(self) -> None:
        await self._session.heartbeat()

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool, private: bool = False
    ) -> Stat:
        access_list = self._private_access_list if private else None
        _, stat = await self._session.ask(
            path,
            lambda client: client.create_async(
                path, data, acl=access_list, ephemeral=ephemeral, include_data=True
            ),
        )
        return _stat(stat)

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        return _stat(
            await self._session.ask(path, lambda client: client.set_async(path, data, version))
        )

    async def delete(self, path: str, version: int) -> None:
        await self._session.ask(path, lambda client: client.delete_async(path, version))

    async def commit(self, operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        def send(client: GatedClient) -> Any:
            transaction = client.transaction()
            for operation in operations:
                match operation:
                    case Create():
                        transaction.create(
                            operation.path, operation.data, ephemeral=operation.ephemeral
                        )
                    case SetData():
                        transaction.set_data(operation.path, operation.data, operation.version)
                    case Delete():
                        transaction.delete(operation.path, operation.version)
                    case Check():
                        transaction.check(operation.path, operation.version)
            return transaction.commit_async()

        paths = [operation.path for operation in operations]
        results = await self._session.ask(
            f"commit of {', '.join(paths)}",
            send,
            possible=lambda results: len(results) == len(paths),
        )
        rejected = rejection(results, paths)
        if rejected is not None:
            raise rejected from rejected.cause
        return tuple(_stat(one) if isinstance(one, ZnodeStat) else None for one in results)

    def _armed(self, trigger: Trigger | None) -> _LoopTrigger | None:
        return None if trigger is None else self._on_loop(trigger)

    def _on_loop(self, trigger: Trigger) -> _LoopTrigger:
        return _LoopTrigger(self._session, trigger)


def _in_requests(triggers: Sequence[ArmedTrigger]) -> Iterator[list[ArmedTrigger]]:
    """Yield the triggers in parts that a server takes at once."""
    some: list[ArmedTrigger] = []
    size_bytes = 0
    for one in triggers:
        path_bytes = len(one.path.encode()) + 4
        if some and size_bytes + path_bytes > MOST_REARMED_BYTES:
            yield some
            some, size_bytes = [], 0
        some.append(one)
        size_bytes += path_bytes
    if some:
        yield some


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(
        version=stat.version,
        czxid=stat.czxid,
        mzxid=stat.mzxid,
        ephemeral_owner=stat.ephemeralOwner,
    )


class ZooKeeperCoordination(LinkedCoordination):
    """One ZooKeeper session; retries until it is connected.

    A connection without answers is reported as SUSPENDED within half the session timeout. LOST is
    reported only when a server says so, which is after a reconnect. So a holder of locks that
    must stop before others can acquire them counts the time since its last successful
    `heartbeat`. ``observe`` is called for each request with its kind, result and duration in
    seconds.
    """

    def __init__(self, options: ZooKeeperOptions, observe: Observe | None = None) -> None:
        link: Link = KazooLink(options)
        super().__init__(
            counted(link, observe) if observe else link,
            chroot=options.chroot,
            timeout_s=options.session_timeout_s,
        )
