from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import nan

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from loadmanager.attach.observation import Observation
from loadmanager.attach.pulsar_balancer import SHEDDING
from loadmanager.core.errors import LoadManagerError
from loadmanager.telemetry.attaching import AttachMetrics


class PortUnusable(LoadManagerError):
    pass


@asynccontextmanager
async def listening(
    app: web.Application, option: str, port: int, host: str | None = None
) -> AsyncIterator[None]:
    """Serve an application while the context lasts, on all addresses or those of ``host``.

    Raises `PortUnusable`: the port cannot be listened on; ``option`` is what names it.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            why = error.strerror or str(error)
            raise PortUnusable(f"{option} {port}: {why}; expected a free port") from None
        yield
    finally:
        await runner.cleanup()


@asynccontextmanager
async def served_metrics(port: int | None) -> AsyncIterator[AttachMetrics]:
    """Yield metrics, served at ``/metrics`` of a port; None serves none."""
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
    async with listening(app, "--metrics-port", port):
        yield metrics


def show_window(metrics: AttachMetrics, seen: Observation, held: str) -> None:
    differing = seen.cluster.differing(SHEDDING)
    metrics.pulsar_shedding.set(nan if not differing else float("true" in differing))
    metrics.held.set(bool(held))
    metrics.max_over_mean.set(nan if seen.plan is None else seen.plan.max_over_mean)
    metrics.least_max_over_mean.set(nan if seen.plan is None else seen.plan.least_max_over_mean)
    metrics.brokers.set(len(seen.cluster.brokers))
    metrics.brokers_missing.set(len(seen.missing))
