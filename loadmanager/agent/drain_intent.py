import structlog

from loadmanager.common.subscriptions import Subscriptions
from loadmanager.ports.coordination import Node

log = structlog.get_logger()


class DrainIntent:
    """Draining because the broker is marked, its sidecar stops, or it is unhealthy.

    The mark's content is only for display: its existence is enough, so a mark with invalid
    content also causes a drain.
    """

    def __init__(self) -> None:
        self._marked = False
        self._stopping = False
        self._let_off = False
        self.healthy = True
        self.changes = Subscriptions()

    @property
    def draining(self) -> bool:
        return self._marked or self._stopping or self._let_off

    def mark_read(self, node: Node | None) -> None:
        before, self._marked = self._marked, node is not None
        if self._marked is not before:
            log.info("broker.drain.observed", draining=self._marked)
            self.changes.notify()

    def health_found(self, *, healthy: bool, let_off: bool) -> None:
        before = self.healthy, self._let_off
        self.healthy, self._let_off = healthy, let_off
        if before != (healthy, let_off):
            self.changes.notify()

    def stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self.changes.notify()
