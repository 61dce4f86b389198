import math
from typing import Final

import structlog

from loadmanager.ports.coordination import TooLarge
from loadmanager.ports.host import Clock
from loadmanager.telemetry.metrics import Metrics

log = structlog.get_logger()

LOG_EVERY_S: Final = 60.0
REST_S: Final = 10.0
"""How long to wait before an oversized write is tried again."""


class OversizedWrites:
    """The oversized writes of one process, by purpose.

    Only such a write fails: its subject stays unchanged, and everything else continues.
    """

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._log_again_s: dict[str, float] = {}

    def refused(self, kind: str, subject: str, error: TooLarge) -> None:
        """Count a write, and log it: at most once a minute for each kind."""
        self._metrics.oversized_writes.labels(kind).inc()
        now_s = self._clock.monotonic_s()
        if now_s >= self._log_again_s.get(kind, -math.inf):
            self._log_again_s[kind] = now_s + LOG_EVERY_S
            log.error(
                "zookeeper.write.too_large",
                kind=kind,
                subject=subject,
                size_bytes=error.size_bytes,
                limit_bytes=error.limit_bytes,
            )
