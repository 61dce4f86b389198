"""A stranger at a broker's control: refused without the secret, survived with it."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
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
        await processes.start()
        await processes.look_up_every_bundle()
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
