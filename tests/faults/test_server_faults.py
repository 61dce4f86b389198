from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from fault_cluster import SESSION_S, FaultCluster, fault_cluster
from faults import PUBLISHED_WITHIN_S, keeps_its_promises

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def of_three(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FaultCluster]:
    """Yield a cluster on an ensemble of three servers."""
    async with fault_cluster(tmp_path_factory.mktemp("servers"), servers=3) as running:
        yield running


@pytest.mark.parametrize(
    "fault",
    [pytest.param("lose a follower", marks=pytest.mark.thorough), "lose ZooKeeper's leader"],
)
async def test_losing_one_server_costs_no_session(of_three: FaultCluster, fault: str) -> None:
    """A hand-over that is hit waits for another server, but no bundles are taken over."""
    outcome = await keeps_its_promises(of_three, fault)
    assert outcome.recovery_s < SESSION_S


async def test_the_loss_of_two_servers_stops_all_until_they_return(of_three: FaultCluster) -> None:
    outcome = await keeps_its_promises(of_three, "lose ZooKeeper's majority")
    # It may be over before the last server says that it is up.
    assert outcome.unserved_s > 0
    assert outcome.published_s <= PUBLISHED_WITHIN_S


async def test_no_message_was_lost_to_any_of_the_servers(of_three: FaultCluster) -> None:
    reports = await of_three.finish()
    assert [report.publish_errors for report in reports] == [0, 0]
