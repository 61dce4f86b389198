"""Pulsar's own admin library, in Go, drives a sidecar, and understands all its answers."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from cluster_processes import process_cluster

pytestmark = [pytest.mark.admin_client, pytest.mark.processes, pytest.mark.timeout(900)]

DRIVER = Path(__file__).parent / "driver"
STEPS = 40


async def ended(*arguments: str, cwd: Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *arguments,
        cwd=cwd,
        env={**os.environ, "GOFLAGS": "-mod=readonly"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def test_pulsars_admin_library_finds_everything_it_expects(tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs Go 1.24 or newer and its module proxy: https://go.dev/doc/install")
    driver = tmp_path / "admindriver"
    code, told = await ended(go, "build", "-o", str(driver), ".", cwd=DRIVER)
    assert code == 0, told
    async with process_cluster(tmp_path, brokers=2, bundles=4) as processes:
        await processes.serve()
        url = processes.cluster.members[0].sidecar_url
        code, told = await ended(str(driver), url, "demo", cwd=tmp_path)
    assert code == 0, told
    assert told.count("ok ") >= STEPS, told
