import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner
from cluster_processes import ProcessCluster, process_cluster, run_command

from loadmanager.cli import main

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
NAMESPACE = "acme/orders"


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Shell:
    processes: ProcessCluster
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        url = self.processes.cluster.members[0].sidecar_url
        return {"LOADMANAGER_URL": url, "XDG_CONFIG_HOME": str(self.home), "PATH": ""}

    async def start(self, *arguments: str) -> Said:
        """Run a command in a process of its own."""
        return Said(*await run_command(*arguments, env=self.environment))

    async def type(self, *arguments: str) -> Said:
        """Run a command in this process, which asks the cluster by HTTP all the same."""
        runner = CliRunner(env=self.environment)
        done = await asyncio.to_thread(runner.invoke, main, arguments)
        return Said(done.exit_code, done.stdout, done.stderr)

    async def well(self, *arguments: str) -> Said:
        """Run a command that must go well."""
        said = await self.type(*arguments)
        assert said.code == 0, (arguments, said)
        return said

    async def until(self, *arguments: str, holds: str, within_s: float = 60.0) -> None:
        """Run a command until ``holds`` is in what it prints."""
        async with asyncio.timeout(within_s):
            while holds not in (said := await self.type(*arguments)).out:
                assert said.code == 0, said
                await asyncio.sleep(0.2)

    async def bundles(self, count: int, within_s: float = 60.0) -> list[str]:
        """Return the bundles once there are ``count``; a sidecar reads changes after the fact."""
        async with asyncio.timeout(within_s):
            while True:
                rows = (await self.well("bundles", NAMESPACE, "--json")).json
                if len(rows) == count:
                    return [row["bundle"] for row in rows]
                await asyncio.sleep(0.2)


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Shell]:
    async with process_cluster(tmp_path, brokers=3, bundles=6) as processes:
        await processes.serve()
        yield Shell(processes, tmp_path)


async def test_all_that_operators_type_works_on_a_live_cluster(shell: Shell) -> None:
    await _look_around(shell)
    await _change_namespaces(shell)
    await _set_and_unset(shell)
    await _ask_the_leader(shell)


async def _look_around(shell: Shell) -> None:
    brokers = (await shell.well("brokers", "--json")).json
    assert len(brokers) == 3
    assert sum(row["bundles"] for row in brokers) == 6
    assert [row["leads"] for row in brokers].count(True) == 1
    table = (await shell.well("brokers")).out
    leader = (await shell.well("leader", "--json")).json["brokerId"]
    assert all(row["broker"] in table for row in brokers)
    assert leader in (await shell.well("leader")).out
    assert leader in (await shell.start("leader")).out
    cluster_state = (await shell.start("top", "--times", "1")).out
    assert f"leader {leader}" in cluster_state
    assert "6 bundles owned" in cluster_state


async def _change_namespaces(shell: Shell) -> None:
    url = f"{shell.environment['LOADMANAGER_URL']}/admin/v2/namespaces/{NAMESPACE}"
    body = {"bundles": {"numBundles": 4}}
    async with aiohttp.request("PUT", url, json=body) as created:
        assert created.status == 204
    owner = (await shell.well("lookup", f"{NAMESPACE}/payments", "--json")).json
    assert owner["bundle"] in (await shell.well("lookup", f"{NAMESPACE}/payments")).out
    bundle = f"{NAMESPACE}/{owner['bundle']}"
    await shell.bundles(4)
    await shell.until("bundles", NAMESPACE, "--json", holds='"owner": "127')
    others = [row["broker"] for row in (await shell.well("brokers", "--json")).json]
    unloaded = (await shell.well("unload", bundle, "--to", others[0])).out
    assert f" {others[0]} " in unloaded, "it moved there, or was there already"
    await shell.until("bundles", NAMESPACE, holds=f"{owner['bundle']}  {others[0]}")
    await shell.well("split", bundle)
    await shell.bundles(5)
    gone = await shell.type("split", bundle)
    assert (gone.code, "not found" in gone.err) == (2, True)
    await _merge(shell, bundle)
    nothing = await shell.type("bundles", "acme/none")
    assert (nothing.code, "acme/none" in nothing.err) == (2, True)


async def _merge(shell: Shell, bundle: str) -> None:
    """Make one of the two parts of a bundle that was just split; it is there again."""
    rows = await shell.bundles(5)
    at = next(number for number, row in enumerate(rows) if row.startswith(bundle[:-11]))
    wrong = await shell.type("merge", rows[0], rows[2])
    assert (wrong.code, "not adjacent" in wrong.err) == (2, True)
    async with asyncio.timeout(60.0):
        # A part that is on its way to its place is refused until it is there.
        while (said := await shell.type("merge", rows[at], rows[at + 1])).code:
            assert said.code == 1, said
            await asyncio.sleep(0.2)
    assert f"are {bundle} now" in said.out
    assert bundle in await shell.bundles(4)


async def _set_and_unset(shell: Shell) -> None:
    assert "[zookeeper]" in (await shell.well("config", "show")).out
    await shell.well("config", "set", "leader.settle_s", "3")
    assert (await shell.well("config", "get", "leader.settle_s")).out.strip() == "3"
    await shell.until("config", "show", holds="settle_s = 3")
    wrong = await shell.type("config", "set", "leader.settle_s", "soon")
    assert (wrong.code, "expected a number" in wrong.err) == (2, True)
    fixed = await shell.type("config", "set", "zookeeper.hosts", "elsewhere:2181")
    assert (fixed.code, "not dynamic" in fixed.err) == (2, True)
    await shell.well("config", "unset", "leader.settle_s")
    assert (await shell.type("config", "get", "leader.settle_s")).code == 2


async def _ask_the_leader(shell: Shell) -> None:
    assert "balancing is paused" in (await shell.well("pause", "--reason", "a test")).out
    planned = await shell.well("plan", "--shedder", "ThresholdShedder", "--set", "threshold=0.0")
    assert "Balancing is paused" in planned.out
    assert "moves" in (await shell.well("plan", "--json")).json
    wrong = await shell.type("plan", "--shedder", "Guessing")
    assert (wrong.code, "expected one of AvgShedder" in wrong.err) == (2, True)
    assert "balancing is observing" in (await shell.well("observe")).out
    assert "balancing is active" in (await shell.well("resume")).out
    decided = (await shell.well("decisions", "--limit", "5", "--json")).json["decisions"]
    assert 1 <= len(decided) <= 5
    assert decided[0]["subject"] in (await shell.well("decisions", "--limit", "5")).out
    tasks = (await shell.well("tasks", "--all", "--json")).json
    assert {one["state"] for one in tasks["tasks"]} >= {"serving"}
    assert "serving" in (await shell.well("tasks", "--all")).out
