"""Servers of a ZooKeeper ensemble that die and come back."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from fault_cluster import FaultCluster, fault_cluster
from fault_hosts import SESSION_S
from fault_outcomes import PUBLISHED_WITHIN_S
from faults import keeps_its_promises

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FaultCluster]:
    async with fault_cluster(tmp_path_factory.mktemp("servers"), servers=3) as running:
        yield running


@pytest.mark.parametrize(
    "fault",
    [pytest.param("lose a follower", marks=pytest.mark.thorough), "lose ZooKeeper's leader"],
)
async def test_losing_one_server_costs_no_session(cluster: FaultCluster, fault: str) -> None:
    """A hand-over that is hit waits for another server, but no bundles are taken over."""
    outcome = await keeps_its_promises(cluster, fault)
    assert outcome.recovery_s < SESSION_S


async def test_the_loss_of_two_servers_stops_all_until_they_return(cluster: FaultCluster) -> None:
    outcome = await keeps_its_promises(cluster, "lose ZooKeeper's majority")
    # It may be over before the last server says that it is up.
    assert outcome.unserved_s > 0
    assert outcome.published_s <= PUBLISHED_WITHIN_S


async def test_no_message_was_lost_to_any_of_the_servers(cluster: FaultCluster) -> None:
    reports = await cluster.finish()
    assert [report.publish_errors for report in reports] == [0, 0]
