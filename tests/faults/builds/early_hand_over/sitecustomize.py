"""A sidecar that drops a bundle's lock before its broker has stopped serving it."""

import asyncio
import sys

from loadmanager.app.owning import Ownerships
from loadmanager.core.ids import BundleId
from loadmanager.core.ownership import Event, Phase

LATE_S = 0.5
_unload = Ownerships._unload


async def _unload_later(self: Ownerships, bundle: BundleId) -> None:
    if self._phases.get(bundle) is Phase.RELEASING:
        self._fire(bundle, Event.BROKER_UNLOADED)
        await asyncio.sleep(LATE_S)
    await _unload(self, bundle)


Ownerships._unload = _unload_later  # type: ignore[method-assign]  # that is the point
sys.stderr.write("build: early_hand_over\n")
