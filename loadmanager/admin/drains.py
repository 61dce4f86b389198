from collections.abc import Callable
from typing import Final

import structlog

from loadmanager.adapters.http.operations import Document, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Query
from loadmanager.common.context import Context
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId, BundleId, belongs_to_a_broker
from loadmanager.core.wire.records import DrainMark, decode_drain_mark, encode_drain_mark
from loadmanager.ports.administration import BrokerUnknown
from loadmanager.ports.coordination import CoordinationError, NodeExists, NodeMissing
from loadmanager.ports.lookup import Unavailable

log = structlog.get_logger()


class Marked(Document):
    """The drain mark of a broker."""

    since_ms: int
    by: str
    reason: str


class DrainState(Document):
    """The drain status of a broker."""

    broker: str
    registered: bool
    draining: bool
    """Whether the broker is registered as draining: its sidecar has seen the mark, or is about to
    stop."""
    bundles_left: int
    marked: Marked | None
    """The drain mark; null if the broker has none."""


class DrainRequests:
    """Marks brokers that are to be drained; every sidecar can.

    ``stays`` says which bundles never move. All methods raise `Unavailable` while the marks
    cannot be read or written.
    """

    def __init__(
        self, context: Context, stays: Callable[[BundleId], bool] = belongs_to_a_broker
    ) -> None:
        self._stays = stays
        self._coordination = context.coordination
        self._cluster_state = context.cluster_state
        self._clock = context.clock
        self._metrics = context.metrics

    async def mark(self, broker: BrokerId, *, by: str, reason: str) -> None:
        """Drain a broker until `unmark`; an existing mark is kept. Raises `BrokerUnknown`."""
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
        log.info("broker.drain.requested", broker=broker, by=by, reason=reason)

    async def unmark(self, broker: BrokerId) -> None:
        path = znodes.draining(broker)
        try:
            await self._coordination.delete(path)
        except NodeMissing:
            return
        except CoordinationError as error:
            raise Unavailable(f"{path} cannot be deleted: {error}") from error
        log.info("broker.drain.cancelled", broker=broker)

    async def status(self, broker: BrokerId) -> DrainState:
        """Raises `BrokerUnknown`: it is neither registered nor marked."""
        mark = await self._mark(broker)
        known = self._cluster_state.brokers.get(broker)
        if known is None and mark is None:
            raise BrokerUnknown(f"{broker}: no such broker is registered or marked")
        await self._cluster_state.lists.require_read(broker)
        owners = self._cluster_state.owners.items()
        left = (b for b, at in owners if at.broker == broker and not self._stays(b))
        return DrainState(
            broker=broker,
            registered=known is not None,
            draining=known is not None and known.registration.draining,
            marked=mark and Marked.model_validate(mark),
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


_BROKER: Final = "/admin/v2/loadmanager/brokers/{broker}"
_PATH: Final = f"{_BROKER}/drain"
_LONGEST: Final = 500
_UNKNOWN: Final = Reply(404, "The broker is not registered.")


class AuthorQuery(Query):
    """The author of a request and the reason, which later queries return."""

    by: str = ""
    """The author of the request; up to 500 characters are kept."""
    reason: str = ""
    """The reason; up to 500 characters are kept."""

    def kept(self) -> dict[str, str]:
        return {"by": self.by[:_LONGEST], "reason": self.reason[:_LONGEST]}


class Drains(Resource, tag="draining"):
    def __init__(self, service: DrainRequests) -> None:
        self._service = service

    @operation(
        "PUT",
        _PATH,
        Reply(204, "The broker is marked; the leader moves its bundles, a few at a time."),
        _UNKNOWN,
    )
    async def mark(self, broker: BrokerId, query: AuthorQuery) -> None:
        """Drain a broker, and keep it empty.

        If the broker is marked already, that mark is kept.
        """
        await self._service.mark(broker, **query.kept())

    @operation("DELETE", _PATH, Reply(204, "The broker has no mark."))
    async def unmark(self, broker: BrokerId) -> None:
        """Let a broker take bundles again.

        If the broker has no mark, nothing is changed.
        """
        await self._service.unmark(broker)

    @operation(
        "GET",
        _BROKER,
        Reply(200, "The drain status.", DrainState),
        Reply(404, "The broker is neither registered nor marked."),
    )
    async def status(self, broker: BrokerId) -> DrainState:
        """Get the number of bundles that are left on a broker, and its drain mark."""
        return await self._service.status(broker)
