"""Registrations and loads are nodes of their own: who reads which, and what a fault of one does."""

import asyncio

import pytest
from stories import served, story

from loadmanager.agent import load_reports as publishing
from loadmanager.core import znodes
from loadmanager.core.load import LoadReport
from loadmanager.core.wire.registrations import decode_registration
from loadmanager.core.wire.reports import decode_loads, encode_loads
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import Cluster


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
async def test_only_the_leader_and_two_others_read_loads(cluster: Cluster) -> None:
    await served(cluster, 10)
    await cluster.until(lambda: len(_warm(cluster)) == 3)
    assert cluster.leader in _warm(cluster)
    for agent in cluster.agents:
        assert len(agent.cluster_state.brokers) == 5
        assert len(agent.cluster_state.loads.reports) == (5 if agent in _warm(cluster) else 0)
        assert agent.metric(
            "loadmanager_report_age_seconds", broker=agent.host.name
        ) == pytest.approx(0.0, abs=60.0)


@story(5)
async def test_one_who_has_read_the_loads_succeeds_the_leader(cluster: Cluster) -> None:
    await cluster.until(lambda: len(_warm(cluster)) == 3)
    former, warm = cluster.leader, _warm(cluster)
    await former.kill()
    await cluster.until(lambda: len(cluster.service.epochs) == 2, within_s=2 * SESSION_S)
    assert cluster.leader in warm
    await cluster.until(lambda: len(_warm(cluster)) == 3)


@story(5)
async def test_one_who_has_read_none_leads_where_the_others_cannot(cluster: Cluster) -> None:
    await cluster.until(lambda: len(_warm(cluster)) == 3)
    cold = [agent for agent in cluster.living if agent not in _warm(cluster)]
    for agent in _warm(cluster):
        await agent.kill()
    await cluster.until(lambda: len(cluster.service.epochs) == 2, within_s=2 * SESSION_S)
    assert cluster.leader in cold
    await served(cluster, 4)


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
