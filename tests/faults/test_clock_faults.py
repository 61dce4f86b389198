"""Clocks that jump, and differ from host to host: nothing rests on them."""

from pathlib import Path

import pytest
from fault_cluster import fault_cluster
from fault_hosts import Place, build
from fault_outcomes import drawn_from
from faults import inject

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]


async def test_clocks_that_jump_and_differ_cost_nothing(tmp_path: Path) -> None:
    """Each sidecar's monotonic clock is days off its broker's, its wall clock jumps by an hour."""
    places = (Place(sidecar_environment=build("jumping_clocks")),) * 3
    async with fault_cluster(tmp_path, places=places) as cluster:
        for fault in ("freeze sidecar", "kill leader"):
            outcome = await inject(cluster, fault, drawn_from(1))
            assert list(outcome.verdict.violations) == []
        logs = [cluster.data_dir / f"sidecar-{host.number}.log" for host in cluster.hosts]
        assert all("build: jumping_clocks\n" in log.read_text() for log in logs)
