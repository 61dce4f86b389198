"""The part of a sidecar that a broker asks: owners and partitions, as a test sets them."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from loadmanager.core.hashing import FULL_RANGE_END, position
from loadmanager.core.ids import BundleId, TopicName, range_of, topic_from_parts


@dataclass
class FakeSidecar:
    """Answers with the owner's URL of the bundle that holds a topic; counts the questions."""

    url: str = ""
    owners: dict[BundleId, str] = field(default_factory=dict)
    partitions: int = 0
    asked: int = 0
    on_question: Callable[[], None] = lambda: None

    async def look_up(self, request: web.Request) -> web.Response:
        """Answer a lookup; 503 where nobody owns the topic."""
        self.asked += 1
        self.on_question()
        parts = request.match_info
        topic = topic_from_parts(
            parts["domain"], parts["tenant"], parts["namespace"], parts["topic"]
        )
        for bundle, url in self.owners.items():
            if holds(bundle, topic):
                headers = {"X-Loadmanager-Bundle": bundle}
                return web.json_response({"brokerUrl": url, "brokerUrlTls": ""}, headers=headers)
        return web.json_response({"reason": "nobody"}, status=503)

    async def count(self, _request: web.Request) -> web.Response:
        """Answer how many partitions a topic has."""
        return web.json_response({"partitions": self.partitions})


def holds(bundle: BundleId, topic: TopicName) -> bool:
    """Tell whether a bundle of the topic's namespace holds it."""
    lower, upper = range_of(bundle)
    at = position(topic, "crc32")
    return lower <= at < upper or at == upper == FULL_RANGE_END


@asynccontextmanager
async def fake_sidecar() -> AsyncIterator[FakeSidecar]:
    """Yield a sidecar that listens, and knows no owner yet."""
    sidecar = FakeSidecar()
    application = web.Application()
    topic = "{domain}/{tenant}/{namespace}/{topic}"
    application.router.add_get(f"/lookup/v2/topic/{topic}", sidecar.look_up)
    application.router.add_get(f"/admin/v2/{topic}/partitions", sidecar.count)
    runner = web.AppRunner(application)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listening).start()
    sidecar.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        yield sidecar
    finally:
        await runner.cleanup()
