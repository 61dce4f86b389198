"""Health checks of the broker, and the drain of an unhealthy one.

The lease covers a broker that does not answer at all. A broker that answers but cannot work is
drained here, and readmitted once it has been healthy for a while.
"""

import math
from typing import Final

import structlog

from loadmanager.agent.load_reports import Sampler
from loadmanager.common.context import Context
from loadmanager.core.health import Health, HealthRules, after, may_be_let_off
from loadmanager.ports.broker import BrokerError, NotTheContract

log = structlog.get_logger()

_IDLE_S: Final = 3600.0
_TELL_EVERY_S: Final = 60.0


class HealthWatch:
    def __init__(self, context: Context, sampler: Sampler, rules: HealthRules) -> None:
        self._context = context
        self._intention = sampler.intention
        self._rules = rules
        self._health = Health()
        self._tell_again_s = -math.inf
        self._log = log.warning

    async def run(self) -> None:
        clock = self._context.clock
        while True:
            await clock.sleep(self._rules.interval_s or _IDLE_S)
            if self._rules.interval_s:
                try:
                    self._learn(await self._complaint())
                except Exception as error:  # noqa: BLE001 - no error of one question ends the sidecar
                    self._context.unexpected.caught("health", error)

    async def _complaint(self) -> str:
        begun_s = self._context.clock.monotonic_s()
        try:
            await self._context.broker.health(self._rules.timeout_s)
        except BrokerError as error:
            # The membership shows a missing process, which cannot be unhealthy.
            self._log = log.debug if isinstance(error, NotTheContract) else log.warning
            self._context.metrics.broker_probed(
                "failed", self._context.clock.monotonic_s() - begun_s
            )
            return str(error)
        self._context.metrics.broker_probed("passed", self._context.clock.monotonic_s() - begun_s)
        return ""

    def _learn(self, complaint: str) -> None:
        now_s = self._context.clock.monotonic_s()
        before, self._health = self._health, after(self._rules, self._health, good=not complaint)
        if not complaint:
            self._tell_again_s = -math.inf
        elif now_s >= self._tell_again_s:
            self._tell_again_s = now_s + _TELL_EVERY_S
            self._log("broker.health.failed", error=complaint)
        if self._health.healthy is not before.healthy:
            self._log("broker.health.changed", healthy=self._health.healthy, error=complaint)
            self._context.metrics.broker_healthy.set(self._health.healthy)
        self._intention.health_found(
            healthy=self._health.healthy, let_off=not self._health.healthy and self._may_be_off()
        )

    def _may_be_off(self) -> bool:
        brokers = self._context.cluster_state.brokers
        me = self._context.identity.broker
        draining = [b for b, known in brokers.items() if b != me and known.registration.draining]
        return may_be_let_off(me, brokers, draining)
