"""A server between a sidecar and its broker, which can answer that the broker is unwell."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from cluster_processes import ProcessCluster

from loadmanager.demo.cluster import Member


class Ahead:
    """A server in front of a broker's control that passes all on, but health if it is told so."""

    def __init__(self, upstream: str, http: aiohttp.ClientSession) -> None:
        self._upstream = upstream
        self._http = http
        self.health_status: int | None = None
        self.asked = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/health"):
            self.asked += 1
            if self.health_status is not None:
                return web.json_response({"reason": "no storage"}, status=self.health_status)
        async with self._http.request(
            request.method,
            f"{self._upstream}{request.path_qs}",
            data=await request.read(),
            headers={
                "Content-Type": "application/json",
                "Authorization": request.headers.get("Authorization", ""),
            },
        ) as passed:
            content = await passed.read()
        return web.Response(status=passed.status, body=content, content_type="application/json")


@asynccontextmanager
async def ahead_of(processes: ProcessCluster, member: Member) -> AsyncIterator[Ahead]:
    ahead = Ahead(f"http://{member.broker}", processes.http)
    runner = web.ServerRunner(web.Server(ahead.answer), shutdown_timeout=0.1)  # type: ignore[arg-type] # a request has all of a base request
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    settings = processes.cluster._sidecar_settings

    def told(one: Member) -> Mapping[str, Mapping[str, Any]]:
        table = settings(one)
        if one is not member:
            return table
        control = {"control_url": f"http://{host}:{port}", "health_interval_s": 0.5}
        return {**table, "broker": {**table["broker"], **control}}

    processes.cluster._sidecar_settings = told  # type: ignore[method-assign, assignment] # for this one
    try:
        yield ahead
    finally:
        await runner.cleanup()
