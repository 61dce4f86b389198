"""The live page served from this process, without a sidecar."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import web

from loadmanager.adapters.http.live.feed import Feed, OverviewReader
from loadmanager.adapters.http.live.page import LivePage
from loadmanager.adapters.http.routes import Route, target_of


async def _handle(route: Route, request: web.Request) -> web.StreamResponse:
    return await route.handler(request, target_of(request.raw_path))


@asynccontextmanager
async def served_page(reader: OverviewReader) -> AsyncIterator[str]:
    feed, app = Feed(reader), web.Application()
    for route in LivePage(feed).routes():
        app.router.add_route(route.method, route.pattern, partial(_handle, route))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await feed.close()
        await runner.cleanup()
