"""A sidecar whose descriptors or memory end stays a member, and serves when they are there again.

Limits of the process stand for those of a machine and of a cgroup: an allocation beyond them fails
as it does where a cgroup may not kill.
"""

import asyncio
import re
import resource
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import aiohttp
import psutil
import pytest
from cluster_processes import ProcessCluster, process_cluster
from waiting import eventually

from loadmanager.demo.cluster import Member

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
FEW_FILES = 64
LIMIT_S = 120.0
HEAD = b"GET /admin/v2/brokers/version HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 12_000


async def serves(processes: ProcessCluster, member: Member) -> bool:
    with suppress(aiohttp.ClientError, AssertionError, TimeoutError):
        async with processes.http.get(f"{member.sidecar_url}/readyz") as answer:
            assert answer.status == 200
        await processes.look_up_every_bundle()
        return True
    return False


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ("descriptors", "host.resource.unknown .*Too many open files"),
        ("memory", "Connection dropped: socket connection error: no memory is left"),
    ],
)
async def test_a_sidecar_goes_on_while_a_resource_ends(
    tmp_path: Path, ends: str, says: str
) -> None:
    async with process_cluster(tmp_path, brokers=2, bundles=8) as processes:
        await processes.serve()
        first = processes.cluster.members[0]
        (sidecar,) = (one for one in processes.children.started if one.name == "sidecar-1")
        process = psutil.Process(sidecar.process.pid)
        what, few = resource.RLIMIT_NOFILE, FEW_FILES
        if ends == "memory":
            what, few = resource.RLIMIT_AS, process.memory_info().vms
        before = resource.prlimit(process.pid, what)
        resource.prlimit(process.pid, what, (few, before[1]))
        with ExitStack() as stack:
            for _ in range(3 * FEW_FILES):
                client = stack.enter_context(socket.socket())
                client.settimeout(0.2)
                with suppress(OSError):
                    client.connect(("127.0.0.1", int(first.sidecar_url.rpartition(":")[2])))
                    client.send(HEAD)
            await eventually(lambda: re.search(says, sidecar.log_path.read_text()))
        resource.prlimit(process.pid, what, before)

        async with asyncio.timeout(LIMIT_S):
            while True:
                if await serves(processes, first):
                    break
                await asyncio.sleep(0.1)
        assert process.is_running()
        # It says so a few times in a second at most, not each time that it looks.
        assert len(sidecar.log_path.read_text().splitlines()) < 5_000
