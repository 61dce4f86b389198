"""Load reports, and health checks: a broker that answers but cannot work is drained."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from loadmanager.agent.registration import Membership
from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings, sleep_interruptibly
from loadmanager.common.watching import Subscriptions
from loadmanager.config.strategies import report_rules_of
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.health import Health, HealthRules, after, may_be_drained
from loadmanager.core.ids import BrokerId
from loadmanager.core.load import NO_BUNDLES, HostUsage, LoadReport, with_registration
from loadmanager.core.report import Due, Published, UsageSamples, due
from loadmanager.core.wire.records import decode_drain_mark
from loadmanager.core.wire.reports import encode_loads, encode_registration
from loadmanager.ports.broker import BrokerError, BrokerStats, NotTheContract
from loadmanager.ports.coordination import (
    Check,
    CommitRejected,
    Create,
    Disconnected,
    Node,
    NodeMissing,
)
from loadmanager.ports.history import offer_report

log = structlog.get_logger()

_RETRY_S = 0.2
_MOST_LOGGED = 5
_LARGEST_BYTES = 900_000
"""ZooKeeper accepts 1 MB per request, and the first loads go with the registration."""
_HEADERS_BYTES = 500
_LOG_INTERVAL_S = 60.0


class DrainIntent:
    """Draining because the broker is marked, its sidecar stops, or it is unhealthy; cordoned."""

    def __init__(self) -> None:
        self._marked = self._cordoned = False
        self._stopping = False
        self._drained_unhealthy = False
        self.healthy = True
        self.changes = Subscriptions()

    @property
    def draining(self) -> bool:
        return self._marked or self._stopping or self._drained_unhealthy

    @property
    def published(self) -> dict[str, Any]:
        """The fields of a registration that this decides."""
        return {
            "draining": self.draining,
            "healthy": self.healthy,
            "persistent_topics": not self._cordoned,
            "non_persistent_topics": not self._cordoned,
        }

    def mark_read(self, node: Node | None) -> None:
        before, marked, drain = (self._marked, self._cordoned), node is not None, True
        if node is not None:
            with suppress(MalformedContent):  # What cannot be read drains it.
                drain = decode_drain_mark(znodes.DRAINING, node.data).drain
        self._marked, self._cordoned = marked and drain, marked and not drain
        if before != (self._marked, self._cordoned):
            log.info("broker.drain.observed", draining=self._marked, cordoned=self._cordoned)
            self.changes.notify()

    def health_found(self, *, healthy: bool, drained: bool) -> None:
        before = self.healthy, self._drained_unhealthy
        self.healthy, self._drained_unhealthy = healthy, drained
        if before != (healthy, drained):
            self.changes.notify()

    def stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self.changes.notify()


@dataclass(slots=True)
class Sampler:
    """Makes load reports; ``window_s`` is the window of the last sample's mean rates."""

    context: Context
    sample_host: Callable[..., HostUsage]
    intention: DrainIntent
    broker_class: str = ""
    window_s: float | None = field(default=None, init=False)
    _samples: UsageSamples = field(default_factory=UsageSamples, init=False)
    _left_out: tuple[str, ...] = field(default=(), init=False)

    async def sample(self) -> LoadReport:
        """Return the report as of now. Raises `BrokerError`: the broker gave no stats."""
        stats = await self.context.broker.stats()
        self.window_s = stats.window_s
        for _ in stats.left_out:
            self.context.metrics.malformed("stats")
        if stats.left_out and stats.left_out != self._left_out:
            log.warning(
                "broker.stats.figures_refused",
                count=len(stats.left_out),
                first=stats.left_out[:_MOST_LOGGED],
            )
        self._left_out = stats.left_out
        host, port = _place(self.context.identity.broker)
        others = (_place(broker) for broker in self.context.cluster_state.brokers)
        usage = self.sample_host(
            broker_process_id=stats.process_id,
            broker_port=port,
            neighbour_ports={at for name, at in others if name == host and at != port},
        )
        self._samples = self._samples.after(usage, frozenset(stats.bundles))
        return self._report(stats, self._samples.last())

    def _report(self, stats: BrokerStats, usage: HostUsage) -> LoadReport:
        identity = self.context.identity
        return LoadReport(
            broker=identity.broker,
            urls=stats.urls or identity.urls,
            sidecar_url=identity.sidecar_url,
            reported_at_ms=self.context.clock.wall_ms(),
            started_at_ms=identity.started_at_ms,
            version=identity.version or stats.version,
            cpu=usage.cpu,
            memory=usage.memory,
            bandwidth_in=usage.bandwidth_in,
            bandwidth_out=usage.bandwidth_out,
            # Rounded here, so that the node and the history have the same figures.
            bundles={name: one.rounded() for name, one in stats.bundles.items()},
            broker_class=self.broker_class,
            **self.intention.published,
        )


class Publisher:
    def __init__(
        self,
        context: Context,
        sampler: Sampler,
        settings: RuntimeSettings,
        *,
        draw: Callable[[], float],
    ) -> None:
        self._coordination = context.coordination
        self.sampler = sampler
        self._intention = sampler.intention
        self._settings = settings
        self._clock = context.clock
        self._metrics = context.metrics
        self._draw = draw
        self._history = context.history
        self._log_again_s = -math.inf

    def fitting(self, report: LoadReport) -> LoadReport:
        """Return the report for the registration, without its bundles if they do not fit."""
        if self._encoded(report) is not None:
            return report
        return replace(report, bundles=NO_BUNDLES)

    async def run(self, membership: Membership, registered: LoadReport) -> None:
        """``registered`` is the report in the nodes. Raises `SessionLost`."""
        last = Published(registered, self._clock.monotonic_s())
        jitter = self._draw()
        behind = False  # Whether the registration was written, and not yet the loads with it.
        self._remember(registered, Due.FIRST, None)
        while True:
            try:
                report = await self._next(last.report)
            except BrokerError as error:
                log.warning("broker.stats.read_failed", error=str(error))
                continue
            except Exception as error:  # noqa: BLE001 - the next sample may be sound
                # Without further samples the report becomes stale, and its broker takes no part
                # in balancing.
                self.sampler.context.unexpected.caught("report", error)
                await self._clock.sleep(_RETRY_S)
                continue
            self._metrics.show_usage(report)
            now_s = self._clock.monotonic_s()
            rules = report_rules_of(self._settings.now.config.report)
            reason = due(rules, last, report, now_s, jitter, forced=behind)
            if reason is None:
                continue
            now, then = frozenset(report.bundles), frozenset(last.report.bundles)
            report = replace(report, gains=now - then, losses=then - now)
            try:
                if reason is Due.REGISTRATION:
                    content = encode_registration(report)
                    await self._coordination.set(znodes.registration(membership.broker), content)
                    last = replace(last, report=with_registration(last.report, report))
                    behind = True
                written = await self._publish_loads(membership, report)
            except (Disconnected, NodeMissing) as error:
                # A missing registration is handled by its guard.
                self._metrics.report_failures.labels("not_written").inc()
                log.warning("report.publish.failed", error=str(error))
                await self._clock.sleep(_RETRY_S)
                continue
            if written:
                self._metrics.report_publishes.labels(reason.value).inc()
                self._remember(report, reason, now_s - last.at_s)
                last, jitter, behind = Published(report, now_s), self._draw(), False

    async def _publish_loads(self, membership: Membership, report: LoadReport) -> bool:
        """Return False if they are too large. Raises `NodeMissing`: it could not be recreated."""
        content = self._encoded(report)
        if content is None:
            return False
        path = znodes.loads(membership.broker)
        try:
            await self._coordination.set(path, content)
        except NodeMissing as missing:
            # Not if a newer agent of this broker has deleted our mark.
            mark = Check(znodes.agent(membership.broker, membership.session_id), 0)
            try:
                await self._coordination.commit([mark, Create(path, content, ephemeral=True)])
            except CommitRejected as rejected:
                raise missing from rejected
        self._metrics.report_bytes.set(len(content))
        return True

    def _encoded(self, report: LoadReport) -> bytes | None:
        content = encode_loads(report)
        limit_bytes = min(_LARGEST_BYTES, self._coordination.max_request_bytes - _HEADERS_BYTES)
        if len(content) <= limit_bytes:
            return content
        self._metrics.report_failures.labels("too_large").inc()
        now_s = self._clock.monotonic_s()
        if now_s >= self._log_again_s:
            self._log_again_s = now_s + _LOG_INTERVAL_S
            log.error(
                "report.publish.refused",
                path=znodes.loads(report.broker),
                size_bytes=len(content),
                limit_bytes=limit_bytes,
                bundles=len(report.bundles),
            )
        return None

    def _remember(self, report: LoadReport, reason: Due, interval_s: float | None) -> None:
        offer_report(
            self._history,
            report,
            self._clock.wall_ms(),
            due=reason.value,
            interval_s=interval_s,
            window_s=self.sampler.window_s,
        )

    async def _next(self, before: LoadReport) -> LoadReport:
        intention = self._intention
        if not _intends_otherwise(intention, before):
            await sleep_interruptibly(
                self._clock,
                lambda: self._settings.now.config.report.sample_interval_s,
                intention.changes.wait,
            )
        if not _intends_otherwise(intention, before):
            return await self.sampler.sample()
        return replace(
            before,
            reported_at_ms=self.sampler.context.clock.wall_ms(),
            **intention.published,
        )


def _place(broker: BrokerId) -> tuple[str, int]:
    host, _, port = broker.rpartition(":")
    return host, int(port)


def _intends_otherwise(intention: DrainIntent, report: LoadReport) -> bool:
    return any(getattr(report, name) is not one for name, one in intention.published.items())


_IDLE_S: Final = 3600.0


class HealthWatch:
    def __init__(self, context: Context, sampler: Sampler, rules: HealthRules) -> None:
        self._context = context
        self._intention = sampler.intention
        self._rules = rules
        self._health = Health()
        self._log_again_s = -math.inf
        self._log = log.warning

    async def run(self) -> None:
        clock = self._context.clock
        while True:
            await clock.sleep(self._rules.interval_s or _IDLE_S)
            if self._rules.interval_s:
                try:
                    self._learn(await self._failed_check())
                except Exception as error:  # noqa: BLE001 - no error of one question ends the sidecar
                    self._context.unexpected.caught("health", error)

    async def _failed_check(self) -> str:
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

    def _learn(self, failed_check: str) -> None:
        now_s = self._context.clock.monotonic_s()
        before, self._health = self._health, after(self._rules, self._health, good=not failed_check)
        if not failed_check:
            self._log_again_s = -math.inf
        elif now_s >= self._log_again_s:
            self._log_again_s = now_s + _LOG_INTERVAL_S
            self._log("broker.health.failed", error=failed_check)
        if self._health.healthy is not before.healthy:
            self._log("broker.health.changed", healthy=self._health.healthy, error=failed_check)
            self._context.metrics.broker_healthy.set(self._health.healthy)
        self._intention.health_found(
            healthy=self._health.healthy, drained=not self._health.healthy and self._may_be_off()
        )

    def _may_be_off(self) -> bool:
        brokers = self._context.cluster_state.brokers
        me = self._context.identity.broker
        draining = [b for b, known in brokers.items() if b != me and not known.registration.takes]
        return may_be_drained(me, brokers, draining)
