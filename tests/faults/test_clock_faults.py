"""Clocks that jump, and differ from host to host: nothing rests on them."""

from pathlib import Path

import pytest
from fault_cluster import fault_cluster
from fault_hosts import Place, build
from faults import keeps_its_promises

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]


async def test_clocks_that_jump_and_differ_cost_nothing(tmp_path: Path) -> None:
    """Each sidecar's monotonic clock is days off its broker's, its wall clock jumps by an hour."""
    places = (Place(sidecar_environment=build("jumping_clocks")),) * 3
    async with fault_cluster(tmp_path, places=places) as cluster:
        for fault in ("freeze sidecar", "kill leader"):
            await keeps_its_promises(cluster, fault)
        logs = [cluster.data_dir / f"sidecar-{host.number}.log" for host in cluster.hosts]
        assert all("build: jumping_clocks\n" in log.read_text() for log in logs)
