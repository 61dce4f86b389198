"""A broker's control: a stranger there is survived, and a broker that is unwell is emptied."""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cluster_processes import ProcessCluster, process_cluster
from waiting import eventually

from loadmanager.adapters.broker.contract import PREFIX
from loadmanager.demo.cluster import Member
from loadmanager.reference_broker.changes import overlaps

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
BUNDLES = 16
HIGHEST_EPOCH = 2**63 - 1


async def raise_epoch(processes: ProcessCluster, member: Member, secret: str) -> int:
    body = {"agentEpoch": HIGHEST_EPOCH, "untilSeconds": None, "incarnation": None}
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    url = f"http://{member.broker}{PREFIX}/lease"
    async with processes.http.put(url, json=body, headers=headers) as answer:
        return answer.status


async def readiness(processes: ProcessCluster, member: Member) -> dict[str, Any]:
    async with processes.http.get(f"{member.sidecar_url}/readyz") as answer:
        told: dict[str, Any] = await answer.json()
    return told


async def test_one_request_of_a_stranger_stops_no_bundle_for_long(tmp_path: Path) -> None:
    async with process_cluster(tmp_path, brokers=3, bundles=BUNDLES) as processes:
        await processes.serve()
        members = processes.cluster.members
        await eventually(lambda: len(processes.served_now(members)) == BUNDLES)
        member = next(one for one in members if processes.served_now([one]))
        others = [one for one in members if one is not member]
        before = processes.served_now([member]).keys()

        assert await raise_epoch(processes, member, "") == 401
        assert await raise_epoch(processes, member, "a-secret-that-is-guessed") == 401
        assert processes.served_now([member]).keys() == before
        assert (await readiness(processes, member))["ready"]

        secret = (tmp_path / "control-secret").read_text()
        assert await raise_epoch(processes, member, secret) == 200
        await eventually(lambda: len(processes.served_now(others)) == BUNDLES)
        assert processes.served_now([member]) == {}
        told = await readiness(processes, member)
        assert not told["ready"]
        assert f"older than {HIGHEST_EPOCH}" in told["reason"]
        _, metrics = await processes.cluster._ask(f"{member.sidecar_url}/metrics")
        assert "loadmanager_broker_leased 0.0" in metrics

        broker, sidecar = member.processes
        broker.send(signal.SIGKILL)
        await broker.process.wait()
        member.processes = (await processes.cluster._start_broker(member), sidecar)

        for _ in range(600):
            if (await readiness(processes, member))["ready"]:
                break
            await asyncio.sleep(0.1)
        assert (await readiness(processes, member))["ready"]
        _, metrics = await processes.cluster._ask(f"{member.sidecar_url}/metrics")
        assert "loadmanager_broker_leased 1.0" in metrics
        assert overlaps(processes.intervals(others)) == []


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


@pytest.mark.thorough
async def test_a_broker_whose_health_answers_500_is_emptied_as_it_serves(tmp_path: Path) -> None:
    async with process_cluster(tmp_path, brokers=2, bundles=8) as processes:
        member, other = processes.cluster.members
        async with ahead_of(processes, member) as ahead:
            await processes.serve()
            await eventually(lambda: bool(processes.served_now([member])))
            ahead.health_status = 500
            await eventually(lambda: len(processes.served_now([other])) == 8)
            assert processes.served_now([member]) == {}
            broker, sidecar = member.processes
            assert broker.running
            assert sidecar.running
            _, metrics = await processes.cluster._ask(f"{member.sidecar_url}/metrics")
            assert "loadmanager_broker_healthy 0.0" in metrics
            assert 'loadmanager_session_changes_total{session="lost"} 0.0' in metrics
            ahead.health_status = None
            asked = ahead.asked
            await eventually(lambda: ahead.asked >= asked + 4)
            _, metrics = await processes.cluster._ask(f"{member.sidecar_url}/metrics")
            assert "loadmanager_broker_healthy 1.0" in metrics
            assert overlaps(processes.intervals()) == []
