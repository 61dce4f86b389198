import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from fault_surroundings import Surroundings, surrounded
from faults import keeps_its_promises

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]


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
