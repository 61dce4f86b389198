"""Brokers marked to be emptied, and how far they are."""

from collections.abc import Callable

import structlog

from loadmanager.common.context import Context
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId, BundleId, belongs_to_a_broker
from loadmanager.core.wire import DrainMark, decode_drain_mark, encode_drain_mark
from loadmanager.ports import (
    BrokerUnknown,
    CoordinationError,
    DrainStatus,
    NodeExists,
    NodeMissing,
    Unavailable,
)

log = structlog.get_logger()


class DrainRequests:
    """The application's side of `DrainService`; ``stays`` says which bundles never move."""

    def __init__(
        self, context: Context, stays: Callable[[BundleId], bool] = belongs_to_a_broker
    ) -> None:
        self._stays = stays
        self._coordination = context.coordination
        self._cluster_state = context.cluster_state
        self._clock = context.clock
        self._metrics = context.metrics

    async def mark(self, broker: BrokerId, *, by: str, reason: str) -> None:
        """Have a broker emptied; see `DrainService`."""
        if broker not in self._cluster_state.brokers:
            raise BrokerUnknown(f"{broker}: no such broker is registered")
        mark = DrainMark(since_ms=self._clock.wall_ms(), by=by, reason=reason)
        path = znodes.draining(broker)
        try:
            await self._coordination.create(path, encode_drain_mark(mark))
        except NodeExists:
            return
        except CoordinationError as error:
            raise Unavailable(f"{path} cannot be written: {error}") from error
        log.info("broker.mark.set", broker=broker, by=by, reason=reason)

    async def unmark(self, broker: BrokerId) -> None:
        """Let a broker take bundles again; see `DrainService`."""
        path = znodes.draining(broker)
        try:
            await self._coordination.delete(path)
        except NodeMissing:
            return
        except CoordinationError as error:
            raise Unavailable(f"{path} cannot be deleted: {error}") from error
        log.info("broker.mark.removed", broker=broker)

    async def status(self, broker: BrokerId) -> DrainStatus:
        """Return how far a broker is; see `DrainService`."""
        mark = await self._mark(broker)
        known = self._cluster_state.brokers.get(broker)
        if known is None and mark is None:
            raise BrokerUnknown(f"{broker}: no such broker is registered or marked")
        owners = self._cluster_state.owners.items()
        left = (b for b, at in owners if at.broker == broker and not self._stays(b))
        return DrainStatus(
            broker=broker,
            registered=known is not None,
            draining=known is not None and known.registration.draining,
            mark=mark,
            bundles_left=sum(1 for _ in left),
        )

    async def _mark(self, broker: BrokerId) -> DrainMark | None:
        path = znodes.draining(broker)
        try:
            node = await self._coordination.get(path)
        except CoordinationError as error:
            raise Unavailable(f"{path} cannot be read: {error}") from error
        if node is None:
            return None
        try:
            return decode_drain_mark(path, node.data)
        except MalformedContent as error:
            log.warning("znode.content.refused", path=path, error=str(error))
            self._metrics.malformed("draining")
            return DrainMark()
