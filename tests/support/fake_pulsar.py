"""Brokers that answer as real Pulsar 4.0.7 brokers did, as far as `loadmanager attach` asks."""

import asyncio
import gzip
import json
import re
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

from aiohttp import web

from loadmanager.core.hashing import position
from loadmanager.core.ids import parse_full_topic

MODULAR = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
EXTENSIBLE = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"
CONFIGURATION = "/admin/v2/brokers/configuration"
_UNLOAD = re.compile(r"/admin/v2/namespaces/(.+/.+)/(0x\w+_0x\w+)/unload")
_SPLIT = re.compile(r"/admin/v2/namespaces/(.+/.+)/(0x\w+)_(0x\w+)/split")
_GROUP = re.compile(r"/admin/v2/namespaces/(.+/.+)/antiAffinity")
_BUNDLES = re.compile(r"/admin/v2/namespaces/(.+/.+)/bundles")
_NAMESPACES = re.compile(r"/admin/v2/namespaces/([^/]+)")
_TOPICS = re.compile(r"/admin/v2/persistent/([^/]+/[^/]+)")
_STATS = re.compile(r"/admin/v2/(persistent|non-persistent)/([^/]+/[^/]+)/(.+)/stats")
_LOOKUP = re.compile(r"/lookup/v2/topic/(persistent|non-persistent)/(.+/.+)/(.+)")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class FakeBroker:
    """One broker: what it owns and has counted, and answers that a test puts in place of its own.

    ``plain`` are the paths asked without TLS along with credentials; ``told_urls`` are what lookups
    say of it in place of its own addresses.

    ``topics`` are messages in and out, bytes in and out, as counted until ``counted_s``; each
    second adds ``grows`` to them. Its page says when it was made, by the clock that counts: rates
    are the same however long a look takes. ``load_report`` is its load manager's, if it
    has one. ``closing`` are the bundles whose topics it is closing, and ``opens`` is whether it
    loads the topics of bundles that it acquires. ``raw`` is what it answers to everything; a
    ``frozen`` one answers nothing.
    """

    name: str = ""
    host: str = "127.0.0.1"
    owned: list[str] = field(default_factory=list)
    topics: dict[str, list[float]] = field(default_factory=dict)
    grows: dict[str, tuple[float, float, float, float]] = field(default_factory=dict)
    counted_s: float = field(default_factory=monotonic)
    settings: dict[str, str] = field(default_factory=dict)
    more_metrics: str = ""
    load_report: dict[str, object] = field(default_factory=dict)
    closing: set[str] = field(default_factory=set)
    opens: bool = True
    instead: dict[str, Handler] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    authorizations: set[str] = field(default_factory=set)
    tls_name: str = ""
    plain: list[str] = field(default_factory=list)
    told_urls: dict[str, str] = field(default_factory=dict)
    down: bool = False
    raw: bytes = b""
    frozen: bool = False

    def count(self) -> None:
        """Let its topics count until now."""
        took_s = monotonic() - self.counted_s
        self.counted_s += took_s
        for topic, grows in self.grows.items():
            counted = self.topics[topic]
            self.topics[topic] = [a + b * took_s for a, b in zip(counted, grows, strict=True)]

    def refuses(self, path: str, status: int, reason: str = "") -> None:
        self.tells(path, json.dumps({"reason": reason}), status)

    def tells(self, path: str, text: str, status: int = 200) -> None:
        async def tell(_: web.Request) -> web.Response:
            return web.Response(status=status, text=text, content_type="application/json")

        self.instead[path] = tell


@dataclass
class FakePulsar:
    """A cluster of such brokers.

    Attributes:
        settings: what all their files say.
        dynamic: what was set over the admin REST since.
        older: whether brokers keep a value that is not overridden any more, as 3.0 does.
        cuts: whether they split at positions that are named, as all from 3.0 on do.
        isolation: its isolation policies by name.
        domains: its failure domains by name.
        groups: the anti-affinity groups of namespaces.
        snatched: brokers that take the next unloaded bundles, whatever was ordered.
        unloads: bundles and destinations as they were ordered.
        unload_s: how long a modular broker takes to close the topics of a bundle.
        answers_s: after which time it answers a longer unload with 500, and goes on.
    """

    brokers: list[FakeBroker]
    settings: dict[str, str] = field(default_factory=dict)
    dynamic: dict[str, str] = field(default_factory=dict)
    older: bool = False
    cuts: bool = True
    kept: dict[str, str] = field(default_factory=dict)
    isolation: dict[str, object] = field(default_factory=dict)
    domains: dict[str, object] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    snatched: list[FakeBroker] = field(default_factory=list)
    unloads: list[tuple[str, str]] = field(default_factory=list)
    unloaded: list[str] = field(default_factory=list)
    unserved: dict[str, tuple[float, float, float, float]] = field(default_factory=dict)
    unload_s: float = 0.0
    answers_s: float = 60.0

    @property
    def url(self) -> str:
        return f"http://{self.brokers[0].name}"

    def runtime(self, broker: FakeBroker) -> dict[str, str]:
        return {
            "clusterName": "research",
            "loadManagerClassName": MODULAR,
            "loadBalancerEnabled": "true",
            "loadBalancerSheddingEnabled": "true",
            "loadBalancerAutoBundleSplitEnabled": "true",
            "exposeTopicLevelMetricsInPrometheus": "true",
            "webServicePortTls": f"Optional[{broker.tls_name.rpartition(':')[2]}]",
            **self.settings,
            **broker.settings,
            **self.kept,
            **self.dynamic,
        }

    def owner(self, bundle: str) -> FakeBroker | None:
        return next((one for one in self.brokers if bundle in one.owned), None)

    def named(self, name: str | None) -> FakeBroker | None:
        return next((one for one in self.brokers if one.name == name), None)

    def hand_over(self, bundle: str, target: FakeBroker | None) -> None:
        """Let another broker serve a bundle, its topics counting from zero; None for nobody."""
        for broker in self.brokers:
            broker.count()
        source = self.owner(bundle)
        if source is not None:
            source.owned.remove(bundle)
            source.closing.discard(bundle)
            for topic in [one for one in source.grows if lies_in(one, bundle)]:
                source.topics.pop(topic)
                self.unserved[topic] = source.grows.pop(topic)
        if target is not None:
            target.owned.append(bundle)
        if target is not None and target.opens:
            for topic in [one for one in self.unserved if lies_in(one, bundle)]:
                target.topics[topic] = [0.0, 0.0, 0.0, 0.0]
                target.grows[topic] = self.unserved.pop(topic)


def lies_in(topic: str, bundle: str) -> bool:
    namespace, _, bounds = bundle.rpartition("/")
    lower, upper = (int(bound, 16) for bound in bounds.split("_"))
    found = parse_full_topic(topic)
    return found.namespace == namespace and lower <= position(found, "crc32") < upper


async def answer(cluster: FakePulsar, broker: FakeBroker, request: web.Request) -> web.Response:
    if broker.down and request.transport is not None:
        request.transport.abort()
    if broker.raw and request.transport is not None:
        request.transport.write(broker.raw)
        request.transport.close()
    broker.asked.append(request.path)
    broker.authorizations.add(request.headers.get("Authorization", ""))
    if "Authorization" in request.headers and not request.secure:
        broker.plain.append(request.path)
    if request.path in broker.instead:
        return await broker.instead[request.path](request)  # type: ignore[return-value]  # any answer will do
    if request.method == "PUT" and (found := _SPLIT.fullmatch(request.path)):
        return split(cluster, broker, found, json.loads(await request.text()))
    if request.method != "GET":
        return await change(cluster, request)
    if found := _LOOKUP.fullmatch(request.path):
        return lookup(cluster, broker, f"{found[1]}://{found[2]}/{found[3]}")
    if request.path == "/metrics/":
        return metrics(broker)
    return told(cluster, broker, request.path)


def told(cluster: FakePulsar, broker: FakeBroker, path: str) -> web.Response:
    answers: dict[str, object] = {
        f"{CONFIGURATION}/runtime": cluster.runtime(broker),
        f"{CONFIGURATION}/values": cluster.dynamic,
        "/admin/v2/brokers/research": [one.name for one in cluster.brokers],
        "/admin/v2/brokers/version": "4.0.7",
        "/admin/v2/clusters/research/failureDomains": cluster.domains,
        f"/admin/v2/brokers/research/{broker.name}/ownedNamespaces": {
            name: {"is_active": name not in broker.closing} for name in broker.owned
        },
    }
    if broker.load_report:
        answers["/admin/v2/broker-stats/load-report"] = broker.load_report
    known = sorted(namespaces(cluster))
    answers["/admin/v2/tenants"] = sorted({one.partition("/")[0] for one in known})
    if found := _NAMESPACES.fullmatch(path):
        answers[path] = [one for one in known if one.startswith(f"{found[1]}/")]
    if path == "/admin/v2/brokers/ready":
        return web.Response(text="ok")
    if found := _GROUP.fullmatch(path):
        group = cluster.groups.get(found[1])
        return web.json_response(group) if group else web.Response(status=204)
    if found := _BUNDLES.fullmatch(path):
        return boundaries(cluster, found[1])
    if found := _STATS.fullmatch(path):
        return stats(broker, f"{found[1]}://{found[2]}/{found[3]}")
    if found := _TOPICS.fullmatch(path):
        topics = {one for each in cluster.brokers for one in each.grows} | cluster.unserved.keys()
        prefix = f"persistent://{found[1]}/"
        answers[path] = sorted(one for one in topics if one.startswith(prefix))
    if cluster.isolation:
        answers["/admin/v2/clusters/research/namespaceIsolationPolicies"] = cluster.isolation
    if path not in answers:
        return refused(404, "HTTP 404 Not Found")
    return web.json_response(answers[path])


def namespaces(cluster: FakePulsar) -> set[str]:
    """Return the namespaces of all bundles, served or not."""
    served = [one for broker in cluster.brokers for one in broker.owned] + cluster.unloaded
    return {one.rpartition("/")[0] for one in served}


def boundaries(cluster: FakePulsar, namespace: str) -> web.Response:
    served = [one for broker in cluster.brokers for one in broker.owned] + cluster.unloaded
    ranges = [one.rpartition("/") for one in served]
    bounds = {bound for name, _, text in ranges if name == namespace for bound in text.split("_")}
    if not bounds:
        return refused(404, "Namespace does not exist")
    return web.json_response({"boundaries": sorted(bounds), "numBundles": len(bounds) - 1})


async def change(cluster: FakePulsar, request: web.Request) -> web.Response:
    path = request.path
    if path.startswith(f"{CONFIGURATION}/"):
        name, _, value = path.removeprefix(f"{CONFIGURATION}/").partition("/")
        if request.method == "DELETE":
            value = cluster.dynamic.pop(name, "")
            if cluster.older and value:
                cluster.kept[name] = value
        else:
            cluster.dynamic[name] = value
        return web.Response()
    if found := _UNLOAD.fullmatch(path):
        bundle, destination = f"{found[1]}/{found[2]}", request.query.get("destinationBroker")
        return await unload(cluster, bundle, destination)
    return refused(404, "HTTP 404 Not Found")


async def unload(cluster: FakePulsar, bundle: str, destination: str | None) -> web.Response:
    cluster.unloads.append((bundle, destination or ""))
    target = cluster.named(destination)
    if target is None and destination is not None:
        return refused(409, "Not allowed unload namespace bundle to inactive destination broker")
    if bundle in cluster.unloaded:
        return web.Response(status=204)
    source = cluster.owner(bundle)
    if source is None:
        return refused(412, f"Invalid upper boundary for bundle {bundle}.")
    if bundle in source.closing:
        return refused(500, f"Namespace bundle {bundle} is being unloaded")
    if cluster.unload_s:
        source.closing.add(bundle)
        closed = asyncio.create_task(close(cluster, bundle, target))
        done, _ = await asyncio.wait({closed}, timeout=cluster.answers_s)
        return web.Response(status=204) if done else refused(500, "Failed to unload: timed out")
    release(cluster, bundle, target)
    return web.Response(status=204)


async def close(cluster: FakePulsar, bundle: str, target: FakeBroker | None) -> None:
    await asyncio.sleep(cluster.unload_s)
    source = cluster.owner(bundle)
    if source is not None and bundle in source.closing:
        release(cluster, bundle, target)


def release(cluster: FakePulsar, bundle: str, target: FakeBroker | None) -> None:
    """Let the next of ``snatched`` have a bundle, or else whom the load manager gives it to."""
    if cluster.snatched:
        cluster.hand_over(bundle, cluster.snatched.pop(0))
    elif target and cluster.runtime(target)["loadManagerClassName"] == EXTENSIBLE:
        cluster.hand_over(bundle, target)
    else:
        cluster.hand_over(bundle, None)
        cluster.unloaded.append(bundle)


def split(
    cluster: FakePulsar, broker: FakeBroker, asked: re.Match[str], cuts: list[int]
) -> web.Response:
    """Cut a bundle at one position; both parts stay."""
    if not cluster.cuts:
        return refused(412, "Unsupported namespace bundle split algorithm")
    namespace, lower, upper = asked.groups()
    (cut,) = cuts
    broker.owned.remove(f"{namespace}/{lower}_{upper}")
    broker.owned += [f"{namespace}/{lower}_0x{cut:08x}", f"{namespace}/0x{cut:08x}_{upper}"]
    return web.Response(status=204)


def lookup(cluster: FakePulsar, broker: FakeBroker, topic: str) -> web.Response:
    """Name the broker of a topic; a bundle without one is served here.

    The broker then looks up the policies of the namespace, and the first one leads.
    """
    for one in cluster.brokers:
        if topic == f"persistent://pulsar/{one.name}/healthcheck":
            return found_at(one)
    policies = f"{topic.rpartition('/')[0]}/__change_events"
    for name, server in ((topic, broker), (policies, cluster.brokers[0])):
        for bundle in [one for one in cluster.unloaded if lies_in(name, one)]:
            cluster.unloaded.remove(bundle)
            cluster.hand_over(bundle, server)
    bundles = (one for candidate in cluster.brokers for one in candidate.owned)
    owner = next((cluster.owner(one) for one in bundles if lies_in(topic, one)), None)
    if owner is None:
        return refused(404, "Topic not found")
    return found_at(owner)


def found_at(broker: FakeBroker) -> web.Response:
    urls = {"httpUrl": f"http://{broker.name}", "brokerUrl": f"pulsar://binary-{broker.name}"}
    if broker.tls_name:
        urls["httpUrlTls"] = f"https://{broker.tls_name}"
    return web.json_response({**urls, **broker.told_urls})


def refused(status: int, reason: str) -> web.Response:
    return web.json_response({"reason": reason}, status=status)


def stats(broker: FakeBroker, topic: str) -> web.Response:
    """Return what a loaded topic has counted."""
    if topic not in broker.topics:
        return refused(404, "Topic not found")
    broker.count()
    names = ("msgInCounter", "msgOutCounter", "bytesInCounter", "bytesOutCounter")
    return web.json_response(dict(zip(names, broker.topics[topic], strict=True)))


def metrics(broker: FakeBroker) -> web.Response:
    broker.count()
    lines = [
        f"jetty_stats_seconds{{}} {broker.counted_s}",
        "# TYPE pulsar_in_messages_total counter",
    ]
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
    lines.append(broker.more_metrics)
    body = gzip.compress(("\n".join(lines) + "\n").encode())
    return web.Response(
        body=body, headers={"Content-Encoding": "gzip", "Content-Type": "text/plain"}
    )


@contextmanager
def running(cluster: FakePulsar, tls: ssl.SSLContext | None = None) -> Iterator[FakePulsar]:
    """Run all brokers on loopback, in a thread of their own; with ``tls`` at a second port, too."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runners: list[web.AppRunner] = []

    async def start() -> None:
        for broker in cluster.brokers:
            app = web.Application()

            async def handle(request: web.Request, broker: FakeBroker = broker) -> web.Response:
                if broker.frozen:
                    broker.asked.append(request.path)
                    await asyncio.Event().wait()
                if request.path == "/":  # A probe, which has no token.
                    return refused(404, "HTTP 404 Not Found")
                return await answer(cluster, broker, request)

            app.router.add_route("*", "/{path:.*}", handle)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, broker.host, 0).start()
            broker.name = f"{broker.host}:{runner.addresses[0][1]}"
            if tls is not None:
                await web.TCPSite(runner, broker.host, 0, ssl_context=tls).start()
                broker.tls_name = f"{broker.host}:{runner.addresses[1][1]}"
            runners.append(runner)

    async def stop() -> None:
        for runner in runners:
            await runner.cleanup()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield cluster
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
