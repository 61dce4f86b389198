from collections.abc import Callable
from dataclasses import replace

import structlog

from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, as_unavailable
from loadmanager.common.subscriptions import Subscriptions
from loadmanager.core import znodes
from loadmanager.core.balancing import Balancing, BalancingMode
from loadmanager.core.errors import MalformedContent
from loadmanager.core.wire.records import decode_balancing, encode_balancing
from loadmanager.ports.coordination import Node, Watch

log = structlog.get_logger()

_READ_POLL_S = 1.0


class BalancingModeRequests:
    def __init__(self, context: Context) -> None:
        self._documents = Documents(context.coordination)
        self._clock = context.clock

    async def state(self) -> Balancing:
        data = await self._documents.read(znodes.BALANCING)
        with as_unavailable(znodes.BALANCING, "read"):
            return decode_balancing(znodes.BALANCING, data) if data else Balancing()

    async def put(self, mode: BalancingMode, *, by: str, reason: str) -> None:
        """Set the mode for this and every later leader; an equal current mode is kept."""
        wanted = Balancing(mode=mode, since_ms=self._clock.wall_ms(), by=by, reason=reason)

        def edit(data: bytes | None) -> bytes | None:
            stands = _mode_in(data)
            return data if data and stands is mode else encode_balancing(wanted)

        await self._documents.change(znodes.BALANCING, edit)
        log.info("balancing.mode.set", mode=mode.value, by=by, reason=reason)


class BalancingModeWatch:
    """The balancing mode as observed by one leader during one term.

    Content that cannot be read leaves the mode unchanged, and pauses a leader that never
    read any other: a mode was intended, and moving bundles can wait.
    ``held`` returns why no bundle may move now in any mode, "" if bundles may move.
    """

    def __init__(self, context: Context, held: Callable[[], str] = lambda: "") -> None:
        self._held = held
        self._coordination = context.coordination
        self._metrics = context.metrics
        self._read: Balancing | None = None
        self._watch: Watch | None = None
        self._changes = Subscriptions()

    @property
    def balancing(self) -> Balancing:
        read = self.wanted
        if read.mode is BalancingMode.ACTIVE and (why := self._held()):
            return replace(read, mode=BalancingMode.OBSERVING, reason=why)
        return read

    @property
    def wanted(self) -> Balancing:
        return self._read or Balancing(mode=BalancingMode.PAUSED)

    def open(self) -> None:
        self._watch = self._coordination.watch(znodes.BALANCING, self._on_node)

    def close(self) -> None:
        if self._watch:
            self._watch.close()
        self._metrics.balancing_changed(None)

    async def read(self) -> None:
        """Wait until the mode has been read, which decisions require."""
        while self._read is None:
            await self._changes.wait(_READ_POLL_S)

    def _on_node(self, node: Node | None) -> None:
        before = self._read
        if node is None:
            self._read = Balancing()
        else:
            try:
                self._read = decode_balancing(znodes.BALANCING, node.data)
            except MalformedContent as error:
                log.warning("znode.content.refused", path=znodes.BALANCING, error=str(error))
                self._metrics.malformed("balancing")
                self._read = before or Balancing(mode=BalancingMode.PAUSED)
        if before is None or before.mode is not self._read.mode:
            log.info("balancing.mode.changed", mode=self._read.mode.value)
        self._metrics.balancing_changed(self._read.mode.value)
        self._changes.notify()


def _mode_in(data: bytes | None) -> BalancingMode | None:
    try:
        return decode_balancing(znodes.BALANCING, data).mode if data else None
    except MalformedContent:
        return None
