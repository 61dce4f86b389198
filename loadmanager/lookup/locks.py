"""Reads the lock of a bundle, which says who owns it where no owned list was read."""

import asyncio
from typing import Final

from loadmanager.core import znodes
from loadmanager.core.ids import BundleId
from loadmanager.core.wire.records import decode_lock
from loadmanager.ports.coordination import Coordination
from loadmanager.ports.lookup import LockHolder

READ_WITHIN_S: Final = 0.5


async def read_lock(coordination: Coordination, bundle: BundleId) -> LockHolder | None:
    """Return the holder of the bundle's lock, None if there is no lock or it names no broker.

    Raises:
        CoordinationError: it cannot be read now.
        MalformedContent: its content is not that of a lock.
        TimeoutError: it was not read within `READ_WITHIN_S`.
    """
    path = znodes.lock(bundle)
    async with asyncio.timeout(READ_WITHIN_S):
        node = await coordination.get(path)
    if node is None:
        return None
    broker = decode_lock(path, node.data).broker
    return None if broker is None else LockHolder(broker, node.stat.czxid)
