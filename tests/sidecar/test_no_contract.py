"""A sidecar beside something that does not speak the broker contract."""

import asyncio

from stories import story

from loadmanager.ports.broker import BrokerStats, BrokerUnreachable, NotTheContract
from tests.testbed.faults.cluster import Cluster

WHY = "GET http://b:8080/stats: status 404 and no reason; expected the broker contract"


@story(0)
async def test_it_says_so_once_a_minute_and_is_not_ready(cluster: Cluster) -> None:
    host = cluster.add_host()
    agent = cluster.start(host)
    answers: list[Exception] = [BrokerUnreachable("connection refused")]

    async def stats() -> BrokerStats:
        raise answers[-1]

    async def health(timeout_s: float) -> None:
        del timeout_s
        raise answers[-1]

    real = agent.line.stats, agent.line.health
    agent.line.stats, agent.line.health = stats, health  # type: ignore[method-assign]
    await asyncio.sleep(10.0)
    answers.append(NotTheContract(WHY))
    await asyncio.sleep(170.0)
    assert not agent.app.answering.readiness().ready
    assert f"the broker holds no lease: {WHY}" in agent.app.answering.readiness().reasons
    told = [one for one in cluster.log_entries if WHY in str(one)]
    assert 3 <= len(told) <= 4
    assert {one["event"] for one in told} == {"broker.lease.missing"}
    assert len(cluster.log_entries) <= 12
    agent.line.stats, agent.line.health = real  # type: ignore[method-assign]
    await cluster.until(lambda: agent.app.answering.readiness().ready, within_s=10.0)
