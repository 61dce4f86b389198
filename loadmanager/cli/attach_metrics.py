"""What ``loadmanager attach --metrics-port`` serves to Prometheus."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import nan

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from loadmanager.attach.balancing import Log
from loadmanager.attach.observation import Observation
from loadmanager.attach.pulsar_balancer import SHEDDING
from loadmanager.core.bundle_task import BundleTask
from loadmanager.core.errors import LoadManagerError
from loadmanager.telemetry.attaching import AttachMetrics


class PortUnusable(LoadManagerError):
    """Metrics cannot be served on the given port."""


@asynccontextmanager
async def served_metrics(port: int | None) -> AsyncIterator[AttachMetrics]:
    """Yield metrics, served at ``/metrics`` of a port; None serves none.

    Raises:
        PortUnusable: the port cannot be listened on.
    """
    registry = CollectorRegistry()
    metrics = AttachMetrics(registry)
    if port is None:
        yield metrics
        return

    async def show(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app = web.Application()
    app.router.add_get("/metrics", show)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, port=port).start()
        except OSError as error:
            why = error.strerror or str(error)
            raise PortUnusable(f"--metrics-port {port}: {why}; expected a free port") from None
        yield metrics
    finally:
        await runner.cleanup()


def show_window(metrics: AttachMetrics, seen: Observation, held: str) -> None:
    """Show one look at a cluster."""
    differing = seen.cluster.differing(SHEDDING)
    metrics.pulsar_shedding.set(nan if not differing else float("true" in differing))
    metrics.held.set(bool(held))
    metrics.max_over_mean.set(nan if seen.plan is None else seen.plan.max_over_mean)
    metrics.least_max_over_mean.set(nan if seen.plan is None else seen.plan.least_max_over_mean)
    metrics.brokers.set(len(seen.cluster.brokers))
    metrics.brokers_missing.set(len(seen.missing))


@dataclass(frozen=True, slots=True)
class MeasuredLog:
    """Prints what a balancer sees, decides and does, and counts it."""

    log: Log
    metrics: AttachMetrics

    def round(self, seen: Observation, held: str) -> None:
        """Report one look at the cluster."""
        show_window(self.metrics, seen, held)
        self.log.round(seen, held)

    def task(self, task: BundleTask, why: str) -> None:
        """Report a task in a new state."""
        if task.state.ended:
            self.metrics.tasks.labels(task.state.value).inc()
        self.log.task(task, why)

    def event(self, what: str) -> None:
        """Report anything else."""
        self.log.event(what)
