from collections.abc import Iterator

import structlog

from loadmanager.common.context import Context
from loadmanager.core.hosts import unreachable

log = structlog.get_logger()

_RECHECK_S = 30.0
_TELL_EVERY_S = 60.0


class Reachability:
    """Whether clients may be sent to this sidecar, and it may lead: the others ask the leader."""

    def __init__(self, context: Context) -> None:
        self._identity = context.identity
        self._cluster_state = context.cluster_state
        self._clock = context.clock
        self._logged_at_s: float | None = None

    def unready(self) -> Iterator[str]:
        why = self.why
        if why:
            yield why

    @property
    def why(self) -> str:
        return unreachable(self._identity.sidecar_url, self._cluster_state.brokers)

    async def run(self) -> None:
        """Log the problem when it begins, and repeatedly while it lasts, until cancelled."""
        while True:
            self._report(self._clock.monotonic_s())
            await self._cluster_state.changes.wait(_RECHECK_S)

    def _report(self, now_s: float) -> None:
        why = self.why
        if not why:
            if self._logged_at_s is not None:
                log.info("sidecar.url.reachable", url=self._identity.sidecar_url)
            self._logged_at_s = None
        elif self._logged_at_s is None or now_s - self._logged_at_s >= _TELL_EVERY_S:
            self._logged_at_s = now_s
            log.error("sidecar.url.unreachable", why=why)
