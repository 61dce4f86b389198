import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from cluster_processes import ProcessCluster, process_cluster
from figures import emit
from waiting import eventually

from loadmanager.demo.cluster import Member

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
FLOOD = Path(__file__).parents[1] / "support" / "flood.py"
DOCKERFILE = Path(__file__).parents[2] / "deploy" / "Dockerfile"


def shipped_probe(port: int) -> tuple[list[str], Mapping[str, str], float]:
    """Return the image's health check for this port: command, environment, timeout in seconds."""
    text = DOCKERFILE.read_text(encoding="utf-8")
    found = re.search(r"HEALTHCHECK .*--timeout=(\d+)s.*\\\n\s*CMD (\[.*\])", text)
    url = re.search(r"HEALTH_URL=(http://127\.0\.0\.1:)8750(\S+)", text)
    assert found is not None
    assert url is not None
    command = [part.strip(",") for part in shlex.split(found[2].strip("[]"))]
    assert command[0] == "python3"
    environment = {**os.environ, "HEALTH_URL": f"{url[1]}{port}{url[2]}"}
    return [sys.executable, *command[1:]], environment, float(found[1])


def exit_code(port: int) -> int:
    """Run the shipped probe; what takes longer than its timeout has failed."""
    command, environment, timeout_s = shipped_probe(port)
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return -1
    return ended.returncode


def health_port_of(processes: ProcessCluster) -> tuple[int, int]:
    (sidecar,) = (one for one in processes.children.started if one.name.startswith("sidecar"))
    found = re.search(r"http\.health\.listening.*port=(\d+)", plain(sidecar.log_path.read_text()))
    assert found is not None
    return sidecar.process.pid, int(found[1])


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.thorough
async def test_the_shipped_probe_fails_while_the_sidecar_is_stopped(tmp_path: Path) -> None:
    async with process_cluster(tmp_path, brokers=1, bundles=4) as processes:
        await processes.start()
        pid, port = health_port_of(processes)
        assert exit_code(port) == 0
        os.kill(pid, signal.SIGSTOP)
        try:
            assert exit_code(port) != 0
        finally:
            os.kill(pid, signal.SIGCONT)
        await eventually(lambda: exit_code(port) == 0)
        # Another sidecar with this port for probes is told which key it is.
        keys = ("broker.id=localhost:1", "sidecar.listen_port=0", f"sidecar.health_port={port}")
        ended = await asyncio.to_thread(agent, *keys)
        assert ended.returncode == 1
        assert "[sidecar] health_port: " in ended.stderr
        assert f" port {port}: address already in use" in ended.stderr
        assert exit_code(port) == 0


def agent(*keys: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loadmanager", "agent"]
    for key in keys:
        command += ["--set", key]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


async def test_a_flood_of_lookups_costs_no_health_lease_or_session(tmp_path: Path) -> None:
    async with process_cluster(tmp_path, brokers=1, bundles=8) as processes:
        settings = processes.cluster._sidecar_settings

        def told(member: Member) -> Mapping[str, Mapping[str, Any]]:
            # A lease as long as the flood: only renewals that it keeps away lose it, and no busy
            # machine.
            zookeeper = {**settings(member)["zookeeper"], "session_timeout_s": 12.0}
            http = {"max_queued_requests": 200}
            return {**settings(member), "zookeeper": zookeeper, "http": http}

        processes.cluster._sidecar_settings = told  # type: ignore[method-assign] # for this one
        await processes.serve()
        members = processes.cluster.members
        await eventually(lambda: len(processes.served_now(members)) == 8)
        _, port = health_port_of(processes)
        flooding = await asyncio.create_subprocess_exec(
            *(sys.executable, str(FLOOD), members[0].sidecar_url.rpartition(":")[2], "1000", "8"),
            stdout=asyncio.subprocess.PIPE,
        )
        waited_s = []
        while flooding.returncode is None:
            started_s = time.monotonic()
            assert await asyncio.to_thread(health, port) == 200
            waited_s.append(time.monotonic() - started_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(flooding.wait()), 0.2)
        assert flooding.stdout is not None
        statuses = json.loads(await flooding.stdout.read())
        emit("flood", statuses=statuses, longest_health_ms=1000 * max(waited_s))
        assert statuses["404"] > 1_000
        assert statuses["503"] > 0
        assert len(waited_s) > 10
        assert max(waited_s) < 1.0
        assert len(processes.served_now(members)) == 8
        async with processes.http.get(f"{members[0].sidecar_url}/metrics") as answer:
            metrics = await answer.text()
        assert 'loadmanager_session_changes_total{session="lost"} 0.0' in metrics
        assert 'loadmanager_lease_renewals_total{result="failed"} 0.0' in metrics
        assert 'loadmanager_ownership_changes_total{change="lost"} 0.0' in metrics
        # Each bundle was served without a break since it had its owner.
        assert len(processes.intervals(members)) == 8


def health(port: int) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=5.0)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    finally:
        connection.close()
