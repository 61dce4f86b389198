import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from fault_surroundings import FAULTS_APART, HOW_TO_BE_APART, Surroundings, going_apart, surrounded
from faults import keeps_its_promises

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]
SCRIPT = Path(__file__).with_name("run_faults.py")
LEFT_OPEN = 2
RANDOM_RUNS = 14
FELT = frozenset({"cut link", "fill broker's disk"})


@pytest.mark.parametrize(
    "kinds",
    [
        ["cut link", "fill broker's disk", "fill ZooKeeper's disk"],
        pytest.param(list(FAULTS_APART), marks=pytest.mark.thorough),
        pytest.param([], marks=[pytest.mark.thorough, pytest.mark.timeout(900)]),
    ],
    ids=["links and disks", "all of them", "random"],
)
def test_faults_leave_one_owner_and_are_soon_over(tmp_path: Path, kinds: Sequence[str]) -> None:
    if kinds and not going_apart():
        pytest.skip(HOW_TO_BE_APART)
    asked = [argument for kind in kinds for argument in ("--kind", kind)]
    runs = len(kinds) or RANDOM_RUNS
    done = subprocess.run(
        [sys.executable, SCRIPT, "--runs", str(runs), *asked, "--folder", tmp_path / "runs"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == LEFT_OPEN:
        pytest.skip(f"the machine stood still at every attempt: {done.stdout}")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    # Each kind once before any twice.
    assert len(told["faults"]) == runs == told["runs"]
    assert told["faults"].keys() >= set(kinds)
    assert all(told["faults"][kind]["worst_s"] > 0 for kind in FELT.intersection(kinds))


def clock_jumps_in(process_id: int) -> bool:
    """Return whether a process, which is no Python, has the library that sets its clock."""
    return "jumping_wall_clock" in Path(f"/proc/{process_id}/maps").read_text()


@pytest.mark.parametrize(
    "faults",
    [
        ["kill leader"],
        pytest.param(["freeze sidecar", "restart ZooKeeper"], marks=pytest.mark.thorough),
    ],
    ids="-".join,
)
async def test_clocks_that_jump_cost_nothing(tmp_path: Path, faults: Sequence[str]) -> None:
    """Each sidecar's monotonic clock is days off its broker's, all wall clocks jump by an hour."""
    async with surrounded(Surroundings.JUMPING, tmp_path) as cluster:
        for fault in faults:
            await keeps_its_promises(cluster, fault)
        logs = [cluster.data_dir / f"sidecar-{host.number}.log" for host in cluster.hosts]
        assert all("build: jumping_clocks\n" in log.read_text() for log in logs)
        (server,) = cluster.servers.members
        assert server.process is not None
        assert clock_jumps_in(server.process.pid) == (shutil.which("cc") is not None)
