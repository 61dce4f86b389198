"""Brokers that answer as real Pulsar 4.0.7 brokers did, as far as an observer asks them."""

import asyncio
import gzip
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

MODULAR = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class FakeBroker:
    """One broker: what it owns and has counted, and answers that a test puts in place of its own.

    ``topics`` are messages in and out, bytes in and out, as counted so far; each look adds
    ``grows`` to them, so that a window has rates.
    """

    name: str = ""
    owned: list[str] = field(default_factory=list)
    topics: dict[str, list[float]] = field(default_factory=dict)
    grows: dict[str, tuple[float, float, float, float]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    more_metrics: str = ""
    instead: dict[str, Handler] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    authorizations: set[str] = field(default_factory=set)


@dataclass
class FakePulsar:
    """A cluster of such brokers."""

    brokers: list[FakeBroker]
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The web service of the first broker."""
        return f"http://{self.brokers[0].name}"

    def runtime(self, broker: FakeBroker) -> dict[str, str]:
        """Return the settings that a broker tells."""
        return {
            "clusterName": "research",
            "loadManagerClassName": MODULAR,
            "loadBalancerEnabled": "true",
            "loadBalancerSheddingEnabled": "true",
            "loadBalancerAutoBundleSplitEnabled": "true",
            "exposeTopicLevelMetricsInPrometheus": "true",
            **self.settings,
            **broker.settings,
        }


async def answer(cluster: FakePulsar, broker: FakeBroker, request: web.Request) -> web.Response:
    """Answer one request as a broker does."""
    broker.asked.append(request.path)
    broker.authorizations.add(request.headers.get("Authorization", ""))
    if request.path in broker.instead:
        return await broker.instead[request.path](request)  # type: ignore[return-value]  # any answer will do
    if request.path == "/metrics/":
        return metrics(broker)
    told: dict[str, object] = {
        "/admin/v2/brokers/configuration/runtime": cluster.runtime(broker),
        "/admin/v2/brokers/research": [one.name for one in cluster.brokers],
        "/admin/v2/brokers/version": "4.0.7",
        f"/admin/v2/brokers/research/{broker.name}/ownedNamespaces": {
            name: {"is_active": True} for name in broker.owned
        },
    }
    if request.path not in told:
        return web.json_response({"reason": "HTTP 404 Not Found"}, status=404)
    return web.json_response(told[request.path])


def metrics(broker: FakeBroker) -> web.Response:
    """Return what a broker has counted, then let it count on."""
    lines = ["# TYPE pulsar_in_messages_total counter"]
    for topic, counted in broker.topics.items():
        namespace = topic.partition("://")[2].rpartition("/")[0]
        labels = f'cluster="research",namespace="{namespace}",topic="{topic}"'
        subscription = f'{labels},subscription="sub"'
        msgs_in, msgs_out, bytes_in, bytes_out = counted
        lines += [
            f"pulsar_in_messages_total{{{labels}}} {msgs_in}",
            f"pulsar_out_messages_total{{{subscription}}} {msgs_out}",
            f"pulsar_in_bytes_total{{{labels}}} {bytes_in}",
            f"pulsar_out_bytes_total{{{subscription}}} {bytes_out}",
            f"pulsar_storage_write_rate{{{labels}}} 1.850",
        ]
        grows = broker.grows.get(topic, (0.0, 0.0, 0.0, 0.0))
        broker.topics[topic] = [a + b for a, b in zip(counted, grows, strict=True)]
    lines.append(broker.more_metrics)
    body = gzip.compress(("\n".join(lines) + "\n").encode())
    return web.Response(
        body=body, headers={"Content-Encoding": "gzip", "Content-Type": "text/plain"}
    )


@contextmanager
def running(cluster: FakePulsar) -> Iterator[FakePulsar]:
    """Run all brokers on loopback, in a thread of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runners: list[web.AppRunner] = []

    async def start() -> None:
        for broker in cluster.brokers:
            app = web.Application()

            async def handle(request: web.Request, broker: FakeBroker = broker) -> web.Response:
                return await answer(cluster, broker, request)

            app.router.add_route("*", "/{path:.*}", handle)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            broker.name = f"127.0.0.1:{runner.addresses[0][1]}"
            runners.append(runner)

    async def stop() -> None:
        for runner in runners:
            await runner.cleanup()

    asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield cluster
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
