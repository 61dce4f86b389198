"""The key that signs the cluster's tokens, unless another is configured.

It is stored in ZooKeeper, so every client that can read it there can sign. The first one that
needs it
makes it; all sidecars watch it, so that a replaced one counts at once, and make it
again when it was deleted.
"""

import secrets
from collections.abc import Callable
from typing import Final

import structlog

from loadmanager.common.subscriptions import Subscriptions
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.ports.coordination import (
    Coordination,
    CoordinationError,
    Disconnected,
    Node,
    NodeExists,
    SessionLost,
)
from loadmanager.ports.host import Clock

log = structlog.get_logger()

KEY_BYTES: Final = 32
_MOST_BYTES: Final = 4_096
_RETRY_S: Final = 1.0
_RECHECK_S: Final = 30.0


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


async def key_of_cluster(coordination: Coordination, make: Callable[[], bytes] = new_key) -> bytes:
    """Return the key, created if the cluster has none.

    Raises `CoordinationError`: the key can be neither read nor created now; `MalformedContent`: the
    node's content is not a key.
    """
    while True:
        node = await coordination.get(znodes.KEY)
        if node is not None:
            return _decoded(node)
        await _create(coordination, make())


class ClusterKey:
    def __init__(
        self, coordination: Coordination, clock: Clock, make: Callable[[], bytes] = new_key
    ) -> None:
        self._coordination = coordination
        self._clock = clock
        self._make = make
        self._changes = Subscriptions()
        self.value: bytes | None = None
        """None while unknown; after a lost connection the last known key."""

    async def run(self) -> None:
        watch = self._coordination.watch(znodes.KEY, self._read)
        try:
            while True:
                if self.value is None and not await self._makes_sure():
                    await self._clock.sleep(_RETRY_S)
                else:
                    await self._changes.wait(_RECHECK_S)
        finally:
            watch.close()

    async def _makes_sure(self) -> bool:
        """Ensure that a key exists, which the watch then reads; return whether it does."""
        try:
            await key_of_cluster(self._coordination, self._make)
        except (Disconnected, SessionLost):
            return False  # The session's state shows it.
        except CoordinationError as error:
            log.warning("cluster.key.read_failed", path=znodes.KEY, error=str(error))
            return False
        except MalformedContent:
            return True  # The watch reports it, and its replacement.
        return True

    def _read(self, node: Node | None) -> None:
        self.value = None
        try:
            self.value = None if node is None else _decoded(node)
        except MalformedContent as error:
            log.warning("znode.content.refused", path=znodes.KEY, error=str(error))
        self._changes.notify()


async def _create(coordination: Coordination, key: bytes) -> None:
    try:
        await coordination.create(znodes.KEY, key, private=True)
    except NodeExists:
        return  # Another process created it first: its key applies.
    log.info("cluster.key.created", path=znodes.KEY)


def _decoded(node: Node) -> bytes:
    if not KEY_BYTES <= len(node.data) <= _MOST_BYTES:
        found, expected = f"{len(node.data)} bytes", f"a key of {KEY_BYTES} to {_MOST_BYTES} bytes"
        raise MalformedContent(znodes.KEY, found, f"{expected}; delete the node to get a new one")
    return node.data
