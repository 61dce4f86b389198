from collections.abc import Callable
from typing import Final

import structlog

from loadmanager.ports.host import Clock
from loadmanager.telemetry.metrics import Metrics

log = structlog.get_logger()

LOG_EVERY_S: Final = 60.0


class UnexpectedErrors:
    """The unexpected errors of one process, by the place that caught them.

    ``followers`` are called with each error: tests and simulated faults treat every one as a
    fault of the program.
    """

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._logged_at_s: dict[str, float] = {}
        self._since: dict[str, int] = {}
        self.followers: list[Callable[[str, BaseException], None]] = []

    def caught(self, place: str, error: BaseException) -> None:
        """Count an error, and log it with its trace: at most once a minute for each place."""
        self._metrics.unexpected_errors.labels(place).inc()
        now_s = self._clock.monotonic_s()
        last_s = self._logged_at_s.get(place)
        if last_s is None or now_s - last_s >= LOG_EVERY_S:
            self._logged_at_s[place] = now_s
            log.error(
                "error.unexpected",
                place=place,
                error=f"{type(error).__name__}: {error}",
                not_logged=self._since.pop(place, 0),
                exc_info=error,
            )
        else:
            self._since[place] = self._since.get(place, 0) + 1
        for follower in self.followers:
            follower(place, error)
