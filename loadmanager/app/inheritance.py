"""What a leader leaves to the next one, in ``/loadbalance/state``.

The leader's times are on its own monotonic clock, which means nothing to another
process. They are stored by the wall clock and turned back on reading: good to a
second or so between hosts that keep time, and the planner forgets what a clock set
back shows in the future.
"""

from collections.abc import Mapping
from dataclasses import replace

import structlog

from loadmanager.app.electing import Deposed, Term
from loadmanager.app.parts import Parts
from loadmanager.core import znodes
from loadmanager.core.averages import BundleAverages
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId
from loadmanager.core.round_memory import RoundMemory
from loadmanager.core.wire import Standby, decode_standby, encode_standby
from loadmanager.ports import Check, CommitRejected, Create, NodeExists, NodeMissing, SetData

log = structlog.get_logger()

_LARGEST_BYTES = 900_000


class Inheritance:
    """Reads the former leader's state, and keeps this one's for the next."""

    def __init__(self, parts: Parts, term: Term) -> None:
        self._parts = parts
        self._term = term
        self._exists = False

    async def take(self) -> Standby | None:
        """Return what the former leader left, None if there is nothing to be used.

        Raises:
            Disconnected: it cannot be read now.
        """
        node = await self._parts.coordination.get(znodes.STATE)
        self._exists = node is not None
        if node is None or not node.data:
            return None
        try:
            standby = decode_standby(znodes.STATE, node.data)
        except MalformedContent as error:
            log.warning("znode.content.refused", path=znodes.STATE, error=str(error))
            self._parts.metrics.malformed("state")
            return None
        log.info("leadership.state.inherited", bundles=len(standby.averages))
        return Standby(shifted(standby.memory, -self._wall_offset_s()), standby.averages)

    async def leave(self, memory: RoundMemory, averages: Mapping[BundleId, BundleAverages]) -> None:
        """Store this leader's state for the next one.

        Raises:
            Deposed: somebody else leads.
            Disconnected: it may or may not be stored.
        """
        standby = Standby(shifted(memory, self._wall_offset_s()), averages)
        content = encode_standby(standby)
        if len(content) > _LARGEST_BYTES:
            content = encode_standby(standby, most_bundles=500)
        state = SetData(znodes.STATE, content) if self._exists else Create(znodes.STATE, content)
        try:
            await self._parts.coordination.commit([Check(znodes.EPOCH, self._term.epoch), state])
        except CommitRejected as rejected:
            if rejected.index == 0:
                raise Deposed(f"epoch {self._term.epoch} is over") from rejected
            if not isinstance(rejected.cause, NodeExists | NodeMissing):
                raise rejected.cause from rejected
            # Somebody made or deleted the node by hand; the next round stores again.
            self._exists = isinstance(rejected.cause, NodeExists)
        else:
            self._exists = True

    def _wall_offset_s(self) -> float:
        """Return what turns a time on this leader's clock into one by the wall clock."""
        return self._parts.clock.wall_ms() / 1000 - self._parts.clock.monotonic_s()


def shifted(memory: RoundMemory, by_s: float) -> RoundMemory:
    """Return the memory with all its times moved by ``by_s``."""
    shed_at_s = {broker: at_s + by_s for broker, at_s in memory.shedder.shed_at_s.items()}
    moved_at_s = {bundle: at_s + by_s for bundle, at_s in memory.moved_at_s.items()}
    return replace(
        memory,
        moved_at_s=moved_at_s,
        shedder=replace(memory.shedder, shed_at_s=shed_at_s),
    )
