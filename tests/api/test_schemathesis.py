import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from cluster_processes import ProcessCluster, process_cluster

from loadmanager.demo.cluster import Member

pytest.importorskip("schemathesis", reason="needs schemathesis: make test-tools")
pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
RULES = Path(__file__).parent / "schemathesis.toml"
CLUSTER = "demo"


async def leading(processes: ProcessCluster) -> Member:
    """Return the member whose sidecar leads: it answers everything by itself."""
    url = f"{processes.cluster.members[0].sidecar_url}/admin/v2/brokers/leaderBroker"
    async with processes.http.get(url) as answer:
        leader = (await answer.json())["brokerId"]
    return next(one for one in processes.cluster.members if one.broker == leader)


async def schemathesis(member: Member, config: Path, *options: str) -> None:
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("schemathesis"),
        *("--config-file", str(config)),
        *("run", f"{member.sidecar_url}/openapi.json"),
        *("--checks", "all", "--generation-deterministic", "--no-color"),
        *("--request-timeout", "60", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=config.parent,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode(errors="replace")


def config_with(tmp_path: Path, parameters: Mapping[str, str]) -> Path:
    lines = [f'"path.{name}" = "{value}"' for name, value in parameters.items()]
    config = tmp_path / "schemathesis.toml"
    config.write_text("\n".join([RULES.read_text(), "[parameters]", *lines, ""]))
    return config


async def test_the_sidecar_is_as_it_is_described(tmp_path: Path) -> None:
    async with process_cluster(tmp_path, brokers=2, bundles=4) as processes:
        await processes.serve()
        member = await leading(processes)
        strangers = config_with(tmp_path, {})
        await schemathesis(
            member, strangers, "--phases", "examples,coverage,fuzzing", "--max-examples", "5"
        )
        names = {"cluster": CLUSTER, "tenant": "public", "namespace": "known"}
        known = config_with(tmp_path, {**names, "broker": member.broker})
        await schemathesis(member, known, "--phases", "fuzzing", "--max-examples", "5")
        # What one answer names is asked for next. Bodies are right ones here: which wrong
        # ones are refused was seen above, and in chains it mistakes some right ones for wrong.
        right = ("--mode", "positive", "--exclude-checks", "negative_data_rejection")
        await schemathesis(member, known, "--phases", "stateful", *right, "--max-examples", "5")
        url = f"{member.sidecar_url}/readyz"
        async with processes.http.get(url) as answer:
            assert answer.status == 200, await answer.text()
