"""Registrations and loads are nodes of their own: who reads which, and what a fault of one does."""

import asyncio

import pytest
from counted_requests import by_role, counted_cluster
from stories import in_virtual_time, served, story
from structlog.testing import capture_logs

from loadmanager.agent import load_reports as publishing
from loadmanager.core import znodes
from loadmanager.core.load import LoadReport
from loadmanager.core.wire.registrations import decode_registration
from loadmanager.core.wire.reports import decode_loads, encode_loads
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import Cluster, topic_in


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
async def test_the_leader_and_two_others_read_loads_and_one_of_them_succeeds(
    cluster: Cluster,
) -> None:
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
    await (await cluster.operator()).delete(path)
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
async def test_a_drain_is_told_with_the_registration(cluster: Cluster) -> None:
    agent = next(one for one in cluster.living if not one.leads)
    before = _published(cluster, agent)
    await (await cluster.operator()).create(znodes.draining(agent.host.name), b"{}")
    await cluster.until(lambda: _published(cluster, agent).draining, within_s=1.0)
    await cluster.until(
        lambda: _published(cluster, agent).reported_at_ms > before.reported_at_ms, within_s=1.0
    )
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
    boundaries = await served(cluster, 30)
    agent = next(one for one in cluster.living if not one.leads)
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


@in_virtual_time
async def test_loads_that_change_are_read_by_the_leader_and_two_others() -> None:
    async with counted_cluster(5) as (cluster, service):
        await asyncio.sleep(60.0)
        service.forget()
        for step in range(10):
            for host in cluster.hosts:
                host.cpu_fraction = 0.1 + 0.4 * (step % 2)
            await asyncio.sleep(30.0)
        roles = by_role(cluster)
        assert len(roles["other"]) == 2
        for role, agents in roles.items():
            reads = service.asked_by(agents)["get /loadbalance/loads"]
            assert reads == 0 if role == "other" else reads > 20
