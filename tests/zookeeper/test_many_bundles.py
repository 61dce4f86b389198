from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from coordination_worlds import ZooKeeperWorld, connected
from prometheus_client import CollectorRegistry
from waiting import eventually

from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.zookeeper import ZooKeeperCoordination
from loadmanager.agent.registration import Takeover, register
from loadmanager.common.cluster_state import ClusterState
from loadmanager.common.context import Context, Identity
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.core.load import BrokerUrls, BundleStats, LoadReport
from loadmanager.core.orders import OrderChanges, decode_orders, encode_owned
from loadmanager.core.wire.reports import encode_loads
from loadmanager.leader.election import Term
from loadmanager.leader.task_controller import OrderBook
from loadmanager.ports.coordination import Create, SetData, TooLarge
from loadmanager.telemetry.metrics import Metrics
from tests.testbed.in_process import InProcessBroker

pytestmark = pytest.mark.zookeeper
BROKER = BrokerId("b1:8080")
HEIRS = (BrokerId("b2:8080"), BrokerId("b3:8080"))
BUNDLES = Boundaries.even(Namespace("tenant/namespace"), 20_000).bundles


def _report() -> LoadReport:
    return LoadReport(
        broker=BROKER,
        urls=BrokerUrls(http_url=f"http://{BROKER}"),
        sidecar_url="http://b1:7750",
        started_at_ms=1,
        reported_at_ms=2,
        bundles={
            bundle: BundleStats(
                msgs_in_per_s=number / 7, bytes_out_per_s=number * 3.3, topics=3
            ).rounded()
            for number, bundle in enumerate(BUNDLES)
        },
        gains=frozenset(BUNDLES),
    )


@pytest.fixture
async def world(zookeeper_address: str) -> AsyncIterator[ZooKeeperWorld]:
    """Return the shared server with the longest sessions: all of it is encoded in one process."""
    made = ZooKeeperWorld(zookeeper_address)
    await made.prepare()
    yield made
    await made.close()


async def test_a_broker_with_20_000_bundles_is_drained(world: ZooKeeperWorld) -> None:
    agents, leaders = world.make(), world.make()
    await connected(agents)
    await connected(leaders)
    clock, metrics = SystemClock(), Metrics(CollectorRegistry())
    identity = Identity(
        broker=BROKER,
        urls=BrokerUrls(http_url=f"http://{BROKER}"),
        sidecar_url="http://b1:7750",
        instance="me",
        started_at_ms=1,
        version="1",
    )
    cluster_state = ClusterState(leaders, clock, metrics)
    cluster_state.open()
    cluster_state.loads.open()
    report = _report()

    # It registers with all its bundles, and the leader sees them.
    succession = Takeover(identity, agents, clock)
    membership, former = await register(agents, identity, report, succession)
    assert former == {}
    await eventually(lambda: BROKER in cluster_state.loads.reports, within_s=20.0)
    assert cluster_state.loads.reports[BROKER].report.bundles.keys() == report.bundles.keys()

    # It lists them as its own, and reports again.
    tokens = {bundle: 10**10 + 7 * number for number, bundle in enumerate(BUNDLES)}
    await agents.set(znodes.owned(BROKER), encode_owned(tokens, BUNDLES))
    await agents.set(znodes.loads(BROKER), encode_loads(replace(report, reported_at_ms=3)))
    await eventually(lambda: len(cluster_state.owners) == len(BUNDLES), within_s=20.0)
    await eventually(lambda: cluster_state.loads.reports[BROKER].report.reported_at_ms == 3)

    # It is ordered to own them, and then to hand all of them over.
    epoch = await leaders.create(znodes.EPOCH, b"")
    context = Context(
        identity=identity,
        coordination=leaders,
        cluster_state=cluster_state,
        broker=InProcessBroker(clock.monotonic_s),
        clock=clock,
        metrics=metrics,
    )
    book = OrderBook(context, Term(epoch.version, leaders.session.session_id))
    await book.read()
    await book.write(OrderChanges(dict.fromkeys(BUNDLES, BROKER)))
    await book.write(OrderChanges({bundle: HEIRS[n % 2] for n, bundle in enumerate(BUNDLES)}))
    for broker, count in ((BROKER, 0), (HEIRS[0], 10_000), (HEIRS[1], 10_000)):
        node = await leaders.get(znodes.orders(broker))
        assert node is not None
        orders = decode_orders(znodes.orders(broker), node.data)
        assert len(orders.bundles) == count
        assert len(orders.handovers) == (len(BUNDLES) if broker == BROKER else 0)
    assert agents.session.session_id == membership.session_id
    cluster_state.close()


OVERHEAD_BYTES = 128


def _commit(path: str, size_bytes: int) -> list[Create | SetData]:
    return [
        SetData("/list", bytes(size_bytes - 2 * OVERHEAD_BYTES - len(path) - len("/list"))),
        Create(path, b"", ephemeral=True),
    ]


async def test_the_largest_commit_is_taken_and_a_larger_one_ends_no_session(
    session: ZooKeeperCoordination, world: ZooKeeperWorld
) -> None:
    before = session.session
    await session.create("/list", b"")
    root = len(world.root)
    most = session.max_request_bytes - 2 * root
    await session.commit(_commit("/a", most))
    with pytest.raises(TooLarge) as refused:
        await session.commit(_commit("/b", most + 1))
    assert refused.value.size_bytes == refused.value.limit_bytes + 1
    with pytest.raises(TooLarge):
        await session.set("/list", bytes(session.max_request_bytes))
    assert await session.get("/a") is not None
    assert await session.get("/b") is None
    assert session.session == before
