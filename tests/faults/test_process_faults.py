from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from fault_cluster import FaultCluster, fault_cluster
from faults import PUBLISHED_WITHIN_S, keeps_its_promises

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FaultCluster]:
    async with fault_cluster(tmp_path_factory.mktemp("processes"), proxied=True) as running:
        yield running


@pytest.mark.parametrize(
    "fault",
    [
        "kill sidecar",
        "kill broker",
        pytest.param("kill both", marks=pytest.mark.thorough),
        "kill leader",
        pytest.param("kill client", marks=pytest.mark.thorough),
        "freeze sidecar",
        pytest.param("freeze broker", marks=pytest.mark.thorough),
        pytest.param("freeze both", marks=pytest.mark.thorough),
        "freeze leader",
        pytest.param("replace leader's frozen sidecar", marks=pytest.mark.thorough),
        "restart ZooKeeper",
        pytest.param("stop ZooKeeper's writes", marks=pytest.mark.thorough),
        pytest.param("cut sidecar off", marks=pytest.mark.thorough),
        "cut leader off silently",
        "lose replies",
    ],
)
async def test_a_fault_leaves_one_owner_and_is_soon_over(cluster: FaultCluster, fault: str) -> None:
    outcome = await keeps_its_promises(cluster, fault)
    assert outcome.published_s <= PUBLISHED_WITHIN_S


async def test_no_message_was_lost_to_any_of_the_faults(cluster: FaultCluster) -> None:
    reports = await cluster.finish()
    assert [report.publish_errors for report in reports] == [0, 0]
    assert all(report.published > 0 for report in reports)
