"""A sidecar that advertises a loopback URL where brokers may be on other hosts."""

from dataclasses import replace

from stories import story

from loadmanager.common.context import Context
from loadmanager.core.ids import BrokerId
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import Cluster
from tests.testbed.faults.host import Host

LOOPBACK = "http://127.0.0.1:7750"


def advertising_loopback(context: Context) -> Context:
    return replace(context, identity=replace(context.identity, sidecar_url=LOOPBACK))


def start(cluster: Cluster, broker: str, *, loopback: bool) -> Agent:
    host = Host(BrokerId(broker), cluster.rng)
    cluster.hosts.append(host)
    build, cluster.build = cluster.build, advertising_loopback if loopback else cluster.build
    try:
        return cluster.start(host)
    finally:
        cluster.build = build


def told(agent: Agent) -> str:
    return "; ".join(agent.app.answering.readiness().reasons)


@story(0)
async def test_it_is_not_ready_and_does_not_stand_for_election(cluster: Cluster) -> None:
    agent = start(cluster, "b1:8080", loopback=True)
    await cluster.until(lambda: agent.application and agent.app.member.registered)
    await cluster.until(lambda: "[sidecar] advertised_url" in told(agent))
    assert "b1:8080" in told(agent)
    assert not any(agent.leads for agent in cluster.agents)
    logged = cluster.warnings("sidecar.url.unreachable")
    assert len(logged) == 1
    assert f"[sidecar] advertised_url is {LOOPBACK}" in logged[0]["why"]
    other = start(cluster, "b2:8080", loopback=False)
    await cluster.until(lambda: other.application and other.app.answering.readiness().ready)
    assert other.leads


@story(0)
async def test_it_gives_the_lead_up_when_a_broker_of_another_host_registers(
    cluster: Cluster,
) -> None:
    first = start(cluster, "localhost:8080", loopback=True)
    await cluster.until(lambda: first.application and first.app.answering.readiness().ready)
    assert first.leads
    second = start(cluster, "b2:8080", loopback=False)
    await cluster.until(lambda: second.application and second.app.member.registered)
    await cluster.until(lambda: second.leads and second.app.answering.readiness().ready)
    assert not first.app.answering.readiness().ready
    assert "b2:8080" in told(first)
    assert first.app.leading.leader_term is None
    assert len(cluster.service.epochs) == 2
    await second.leave()
    await cluster.until(lambda: first.leads and first.app.answering.readiness().ready)


@story(0)
async def test_on_one_host_loopback_is_well(cluster: Cluster) -> None:
    agents = [start(cluster, f"localhost:{port}", loopback=True) for port in (8080, 8081)]
    await cluster.until(lambda: all(agent.application for agent in agents))
    await cluster.until(lambda: all(agent.app.answering.readiness().ready for agent in agents))
    assert cluster.warnings("sidecar.url.unreachable") == []
