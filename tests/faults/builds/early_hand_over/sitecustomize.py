"""A sidecar that drops a bundle's lock before its broker has stopped serving it."""

import asyncio
import sys

from loadmanager.agent.ownership import Ownership, OwnershipEffects
from loadmanager.core.ownership import Event, Phase

LATE_S = 0.5
_unload = OwnershipEffects._unload


async def _unload_later(self: OwnershipEffects, record: Ownership) -> None:
    if record.phase is Phase.RELEASING:
        self.fire(record, Event.BROKER_UNLOADED)
        await asyncio.sleep(LATE_S)
    await _unload(self, record)


OwnershipEffects._unload = _unload_later  # type: ignore[method-assign]  # that is the point
sys.stderr.write("build: early_hand_over\n")
