"""A sidecar that drops a bundle's lock before its broker has stopped serving it."""

import asyncio
import sys

from loadmanager.agent.ownership import Ownership, OwnershipWorker
from loadmanager.core.ownership import Event, Phase

LATE_S = 0.5
_unload = OwnershipWorker._unload


async def _unload_later(self: OwnershipWorker, record: Ownership) -> None:
    if record.phase is Phase.RELEASING:
        self._fire(record, Event.BROKER_UNLOADED)
        await asyncio.sleep(LATE_S)
    await _unload(self, record)


OwnershipWorker._unload = _unload_later  # type: ignore[method-assign]  # that is the point
sys.stderr.write("build: early_hand_over\n")
