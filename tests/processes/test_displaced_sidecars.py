import asyncio
import signal
from pathlib import Path

import pytest
from cluster_processes import ProcessCluster, process_cluster

from loadmanager.cli.agent import DISPLACED
from loadmanager.demo.children import Child, free_ports
from loadmanager.demo.cluster import HOST, Member
from loadmanager.reference_broker.changes import overlaps

pytestmark = [pytest.mark.processes, pytest.mark.thorough, pytest.mark.timeout(300)]
BUNDLES = 8
BOUND_S = 60.0


async def start_another(processes: ProcessCluster, member: Member) -> Child:
    (port,) = free_ports(1)
    member.sidecar_url = f"http://{HOST}:{port}"
    return await processes.cluster._start_sidecar(member)


async def until_registered(processes: ProcessCluster, member: Member, sidecar: Child) -> None:
    async with asyncio.timeout(BOUND_S):
        while True:
            assert sidecar.running, sidecar.log_tail()
            _, metrics = await processes.cluster._ask(f"{member.sidecar_url}/metrics")
            if 'loadmanager_lease_renewals_total{result="renewed"} 0' not in metrics and metrics:
                return
            await asyncio.sleep(0.1)


async def ended(child: Child) -> int:
    async with asyncio.timeout(BOUND_S):
        return await child.process.wait()


async def test_a_frozen_sidecar_that_was_replaced_wakes_up_and_ends(tmp_path: Path) -> None:
    async with process_cluster(tmp_path, brokers=2, bundles=BUNDLES) as processes:
        await processes.start()
        await processes.look_up_every_bundle()
        member = processes.cluster.members[0]
        frozen = member.processes[1]
        frozen.send(signal.SIGSTOP)
        await asyncio.sleep(processes.session_timeout_s + 2.0)
        newcomer = await start_another(processes, member)
        await until_registered(processes, member, newcomer)
        frozen.send(signal.SIGCONT)
        assert await ended(frozen) == DISPLACED
        log = frozen.log_path.read_text()  # The newcomer writes there too.
        (why,) = [line for line in log.splitlines() if line.startswith("loadmanager agent: ")]
        assert f"the sidecar {member.sidecar_url} on host " in why
        assert f"process {newcomer.process.pid}" in why
        await asyncio.sleep(processes.session_timeout_s)
        assert newcomer.running
        assert overlaps(processes.intervals()) == []
