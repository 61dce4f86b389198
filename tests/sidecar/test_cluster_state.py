import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count

import pytest
from counted_requests import by_role, counted_cluster
from stories import in_virtual_time, served, served_beside, story
from structlog.testing import capture_logs
from waiting import eventually

from loadmanager.agent import load_reports as publishing
from loadmanager.common.cluster_conditions import KEY_BYTES, ClusterKey, key_of_cluster, new_key
from loadmanager.common.watching import Subscriptions
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId, BundleId, parse_broker, parse_bundle
from loadmanager.core.load import LoadReport
from loadmanager.core.orders import encode_owned
from loadmanager.core.wire.reports import decode_loads, decode_registration, encode_loads
from loadmanager.ports.coordination import Connection
from loadmanager.ports.session import Coordination
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import Cluster, topic_in
from tests.testbed.faults.virtual_time import VirtualClock
from tests.testbed.memory import MemoryCoordination, MemoryService

WHOLE = parse_bundle("acme/orders/0x00000000_0xffffffff")
FIRST, SECOND = parse_broker("one:8080"), parse_broker("two:8080")


async def _list(cluster: Cluster, broker: BrokerId, tokens: dict[BundleId, int | None]) -> None:
    await cluster.write(znodes.owned(broker), encode_owned(tokens))


def _holder(cluster: Cluster) -> tuple[str, int] | None:
    holding = cluster.agents[0].cluster_state.owners.get(WHOLE)
    return None if holding is None else (holding.broker, holding.fencing_token)


@story(1)
async def test_of_the_lists_with_a_bundle_the_latest_lock_is_believed(cluster: Cluster) -> None:
    await _list(cluster, SECOND, {WHOLE: 70})
    await cluster.until(lambda: _holder(cluster) == (SECOND, 70))
    assert cluster.agents[0].cluster_state.live_owner(WHOLE) is None  # It is not registered.
    await _list(cluster, FIRST, {WHOLE: 60})
    await asyncio.sleep(0.1)
    assert _holder(cluster) == (SECOND, 70)
    await _list(cluster, FIRST, {WHOLE: 80})
    await cluster.until(lambda: _holder(cluster) == (FIRST, 80))
    await cluster.delete(znodes.owned(FIRST))
    await cluster.until(lambda: _holder(cluster) == (SECOND, 70))
    await _list(cluster, SECOND, {})
    await cluster.until(lambda: _holder(cluster) is None)
    # A token that is not written is the list's own zxid.
    await _list(cluster, FIRST, {WHOLE: None})
    mzxid = cluster.service.dump()[znodes.owned(FIRST)].stat.mzxid
    await cluster.until(lambda: _holder(cluster) == (FIRST, mzxid))


@in_virtual_time
async def test_a_change_wakes_waiters_and_calls_subscribers() -> None:
    changes, called = Subscriptions(), [0]

    def count() -> None:
        called[0] += 1

    changes.subscribe(count)
    first = asyncio.ensure_future(changes.wait(10.0))
    given_up = asyncio.ensure_future(changes.wait(10.0))
    await asyncio.sleep(1.0)
    given_up.cancel()
    changes.notify()
    assert await first
    assert not await changes.wait(1.0)
    changes.unsubscribe(count)
    changes.notify()
    assert called == [1]


async def test_a_subscriber_that_fails_keeps_the_change_from_no_other() -> None:
    changes, called, failed = Subscriptions(), [0], []

    def fail() -> None:
        raise ValueError("a defect")

    def count() -> None:
        called[0] += 1

    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    for callback in (fail, count):
        changes.subscribe(callback)
    changes.notify()
    assert (called, [str(one["exception"]) for one in failed]) == ([1], ["a defect"])


@in_virtual_time
async def test_who_is_cancelled_together_with_a_change_is_cancelled() -> None:
    changes = Subscriptions()
    waiting = asyncio.ensure_future(changes.wait(10.0))
    await asyncio.sleep(1.0)
    changes.notify()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def drawn() -> Callable[[], bytes]:
    numbers: Iterator[int] = count(1)
    return lambda: next(numbers).to_bytes(KEY_BYTES, "big")


@asynccontextmanager
async def connected(service: MemoryService) -> AsyncIterator[MemoryCoordination]:
    session = MemoryCoordination(service)
    await session.start()
    await eventually(lambda: session.session.connection is Connection.CONNECTED)
    try:
        yield session
    finally:
        await session.close()


@asynccontextmanager
async def watched(
    coordination: Coordination, make: Callable[[], bytes]
) -> AsyncIterator[ClusterKey]:
    key = ClusterKey(coordination, VirtualClock(), make)
    running = asyncio.ensure_future(key.run())
    try:
        yield key
    finally:
        running.cancel()
        await asyncio.wait({running})


@in_virtual_time
async def test_all_have_the_key_that_the_first_makes_or_a_hand_replaces() -> None:
    service, make = MemoryService(), drawn()
    async with (
        connected(service) as one,
        connected(service) as two,
        watched(one, make) as first,
        watched(two, make) as second,
    ):
        assert first.value is None
        await eventually(lambda: first.value is not None and second.value is not None)
        assert first.value == second.value == service.dump()[znodes.KEY].data
        async with connected(service) as late, watched(late, make) as third:
            await eventually(lambda: third.value is not None)
            assert third.value == first.value
        await one.set(znodes.KEY, b"k" * 48)
        await eventually(lambda: first.value == second.value == b"k" * 48)
        await one.delete(znodes.KEY)
        await eventually(lambda: first.value not in {None, b"k" * 48}, within_s=5.0)
        await eventually(lambda: second.value == first.value, within_s=5.0)


@in_virtual_time
async def test_a_key_deleted_before_anybody_saw_it_is_made_again() -> None:
    service = MemoryService()
    async with connected(service) as one, connected(service) as operator:
        make = drawn()
        async with watched(one, make) as key:
            for _ in range(20):
                if znodes.KEY in service.dump():
                    await operator.delete(znodes.KEY)
                await asyncio.sleep(0)
            await eventually(lambda: key.value is not None, within_s=40.0)
            assert service.dump()[znodes.KEY].data == key.value


@pytest.mark.parametrize("content", [b"", b"k" * 31, b"k" * 5000])
@in_virtual_time
async def test_what_is_no_key_is_told_and_left_until_it_is_replaced(content: bytes) -> None:
    service = MemoryService()
    async with connected(service) as one:
        await one.create(znodes.KEY, content)
        with pytest.raises(MalformedContent, match="expected a key of 32 to 4096 bytes"):
            await key_of_cluster(one)
        with capture_logs() as logs:
            async with watched(one, drawn()) as key:
                await asyncio.sleep(65.0)
                assert key.value is None
                assert service.dump()[znodes.KEY].data == content
                await one.set(znodes.KEY, b"k" * 32)
                await eventually(lambda: key.value == b"k" * 32, within_s=5.0)
        told = [each for each in logs if each["event"] == "znode.content.refused"]
        assert [each["path"] for each in told] == [znodes.KEY]


@in_virtual_time
async def test_an_outage_leaves_the_key_that_was_known() -> None:
    service = MemoryService()
    async with connected(service) as one, connected(service) as two, watched(one, drawn()) as key:
        await eventually(lambda: key.value is not None)
        before = key.value
        one.suspend()
        await two.set(znodes.KEY, b"k" * 32)
        await asyncio.sleep(5.0)
        assert key.value == before
        one.reconnect()
        await eventually(lambda: key.value == b"k" * 32)


def test_keys_are_random() -> None:
    assert len(new_key()) == KEY_BYTES
    assert new_key() != new_key()


def _published(cluster: Cluster, agent: Agent) -> LoadReport:
    nodes = cluster.service.dump()
    registered, loads = znodes.registration(agent.host.name), znodes.loads(agent.host.name)
    registration = decode_registration(registered, nodes[registered].data)
    return decode_loads(loads, nodes[loads].data, registration)


def _drained_in_view(cluster: Cluster, agent: Agent) -> bool:
    view = cluster.leader_term.look().view
    return bool(view.brokers.draining[view.row(agent.host.name)])


def _warm(cluster: Cluster) -> list[Agent]:
    return [agent for agent in cluster.living if agent.cluster_state.loads.complete]


@story(5)
async def test_the_leader_and_two_others_read_loads_and_one_succeeds(cluster: Cluster) -> None:
    await served(cluster, 10)
    await cluster.until(lambda: len(_warm(cluster)) == 3)
    former, warm = cluster.leader, _warm(cluster)
    assert former in warm
    for agent in cluster.agents:
        assert len(agent.cluster_state.brokers) == 5
        assert len(agent.cluster_state.loads.reports) == (5 if agent in warm else 0)
        assert agent.metric(
            "loadmanager_report_age_seconds", broker=agent.host.name
        ) == pytest.approx(0.0, abs=60.0)
    await former.kill()
    await cluster.until(lambda: len(cluster.service.epochs) == 2, within_s=2 * SESSION_S)
    assert cluster.leader in warm
    await cluster.until(lambda: len(_warm(cluster)) == 3)
    # One who has read none leads where the others cannot.
    (cold,) = (agent for agent in cluster.living if agent not in _warm(cluster))
    for agent in _warm(cluster):
        await agent.kill()
    await cluster.until(lambda: len(cluster.service.epochs) == 3, within_s=2 * SESSION_S)
    assert cluster.leader is cold


@story()
async def test_loads_that_were_deleted_are_written_again(cluster: Cluster) -> None:
    agent = cluster.leader
    path = znodes.loads(agent.host.name)
    await cluster.delete(path)
    agent.host.cpu_fraction = 0.9
    await cluster.until(lambda: path in cluster.service.dump(), within_s=90.0)
    node = cluster.service.dump()[path]
    assert node.stat.ephemeral_owner == agent.coordination.session.session_id
    assert agent.app.member.registered
    assert cluster.warnings("broker.membership.ended") == []


@story()
async def test_loads_say_how_usage_varied_and_the_leader_sees_it(cluster: Cluster) -> None:
    agent = next(one for one in cluster.living if not one.leads)
    for step in range(60):
        agent.host.cpu_fraction = 0.35 if step % 2 else 0.3
        await asyncio.sleep(0.7)
    cpu = _published(cluster, agent).cpu
    assert cpu is not None
    assert cpu.mean is not None
    assert cpu.variance is not None
    assert 120.0 < cpu.mean < 140.0
    assert 50.0 < cpu.variance < 120.0  # of 12 samples, half of them 120 and half 140
    known = cluster.leader.cluster_state.loads.reports
    await cluster.until(lambda: known[agent.host.name].report == _published(cluster, agent))


@story()
async def test_loads_that_are_too_large_end_no_membership(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served(cluster, 30)
    agent = next(one for one in cluster.living if not one.leads)
    before = _published(cluster, agent)
    monkeypatch.setattr(publishing, "_LARGEST_BYTES", len(encode_loads(before)) - 1)
    agent.host.cpu_fraction = 0.9
    await asyncio.sleep(130.0)
    failed = agent.metric("loadmanager_report_failures_total", cause="too_large")
    assert failed > 3
    told = [
        one for one in cluster.warnings("report.publish.refused") if agent.host.name in one["path"]
    ]
    assert 1 <= len(told) <= 3
    assert told[0]["size_bytes"] > told[0]["limit_bytes"]
    assert _published(cluster, agent) == before
    # What people, lookups and decisions have to know is written all the same.
    await (await cluster.operator()).create(znodes.draining(agent.host.name), b"{}")
    await cluster.until(lambda: _published(cluster, agent).draining, within_s=1.0)
    await cluster.until(lambda: _drained_in_view(cluster, agent), within_s=1.0)
    assert cluster.warnings("broker.membership.ended") == []
    monkeypatch.undo()
    await cluster.until(lambda: not agent.host.serving)
    await cluster.until(lambda: _published(cluster, agent).bundles == {})


@story()
async def test_a_broker_whose_first_loads_are_too_large_registers_without_its_bundles(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    boundaries, agent = await served_beside(cluster, 30, serving=False)
    report = _published(cluster, agent)
    monkeypatch.setattr(publishing, "_LARGEST_BYTES", len(encode_loads(report)) - 1)
    before = set(agent.host.serving)
    heir = cluster.start(agent.host)
    await cluster.until(lambda: heir.application and heir.app.member.registered)
    assert _published(cluster, heir).bundles == {}
    assert _published(cluster, heir).cpu == report.cpu
    assert before == set(agent.host.serving)
    await cluster.settled(boundaries.bundles)


COUNTED_S = 120.0


@pytest.mark.parametrize("sidecars", [3, 5])
@in_virtual_time
async def test_a_leader_at_rest_asks_for_reports_and_orders(sidecars: int) -> None:
    async with counted_cluster(sidecars) as (cluster, service):
        await served(cluster, 4 * sidecars)
        await asyncio.sleep(300.0)
        service.forget()
        await asyncio.sleep(COUNTED_S)
        asked = service.asked_by(by_role(cluster)["leader"])
        ordered = sum(znodes.orders(host.name) in service.nodes for host in cluster.hosts)
        rounds = asked["children /namespace"]
        assert 1 <= rounds <= 2
        reports, orders = asked["get /loadbalance/loads"], asked["get /loadbalance/orders"]
        assert reports == pytest.approx(sidecars * COUNTED_S / 60, abs=1)
        assert orders == ordered * rounds
        assert asked["heartbeat"] == pytest.approx(COUNTED_S / 1.5, abs=1)
        assert asked.total() - asked["heartbeat"] - reports - orders <= 12
        others = by_role(cluster)["other"]
        assert len(others) == sidecars - 3
        for agent in others:
            asked = service.asked_by([agent])
            assert 0 < asked.total() < COUNTED_S
            assert asked["sync"] == 0


@pytest.mark.parametrize("sidecars", [6, pytest.param(24, marks=pytest.mark.thorough)])
@in_virtual_time
async def test_what_many_placements_ask_of_zookeeper_is_predicted_in_the_log(sidecars: int) -> None:
    async with counted_cluster(sidecars) as (cluster, service):
        boundaries = await cluster.make_namespace(16 * sidecars)
        first, *others = (topic_in(boundaries, one) for one in boundaries.bundles)
        await cluster.leader.look_up(first)  # The folder of locks is there for the others.
        await asyncio.sleep(60.0)
        service.forget()
        with capture_logs() as logged:
            await asyncio.gather(*map(cluster.leader.look_up, others))
            await asyncio.sleep(1.0)
        batches = [one for one in logged if one["event"] == "orders.batch.begun"]
        expected = sum(one["requests_expected"] for one in batches)
        assert sum(one["bundles"] for one in batches) > 12 * sidecars
        asked = service.asked_by(cluster.living)
        # Once a broker and namespace, or once a term: boundaries and the epoch.
        once = ("exists", "sync", "get /admin/local-policies", "get /loadbalance/epoch")
        timed = ("heartbeat", "get /loadbalance/loads")
        made = sum(n for name, n in asked.items() if not name.startswith((*once, *timed)))
        assert made == pytest.approx(expected, rel=0.05)
