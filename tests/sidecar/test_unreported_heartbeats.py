"""A server of the ensemble fails before it reported a heartbeat that it had answered."""

import asyncio

import pytest
from stories import follower, served, story

from loadmanager.core.lease import Heartbeats
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import Cluster

TICK_S = SESSION_S / 2


async def _until_after_a_report(after_s: float) -> None:
    now_s = asyncio.get_running_loop().time()
    await asyncio.sleep(TICK_S / 2 - now_s % (TICK_S / 2) + after_s)


async def _cut_off_after_a_pause(cluster: Cluster) -> Agent:
    """Return a sidecar whose session ends as if the heartbeats since its pause had not been."""
    cluster.service.half_tick_s = TICK_S / 2
    await served(cluster, 6)
    agent = follower(cluster)
    session_id = agent.coordination.session.session_id
    await _until_after_a_report(0.1)
    agent.coordination.freeze()
    await asyncio.sleep(TICK_S)
    agent.coordination.thaw()
    renewed = agent.metric("loadmanager_lease_renewals_total", result="renewed")
    await asyncio.sleep(TICK_S / 4)
    assert agent.coordination.session.session_id == session_id
    assert agent.host.serving
    assert agent.metric("loadmanager_lease_renewals_total", result="renewed") > renewed
    agent.coordination.suspend()
    await cluster.until(lambda: not cluster.service.lives(session_id), within_s=0.6 * SESSION_S)
    return agent


@story(zookeeper={"tick_s": TICK_S})
async def test_the_lease_is_over_before_the_session(cluster: Cluster) -> None:
    agent = await _cut_off_after_a_pause(cluster)
    assert not agent.host.serving


@story(zookeeper={"tick_s": TICK_S}, checked=False)
async def test_a_lease_from_the_last_heartbeat_would_not_be(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the simulated ensemble can tell the two apart."""
    monkeypatch.setattr(Heartbeats, "known_since_s", lambda _self, sent_s, *_: sent_s)
    agent = await _cut_off_after_a_pause(cluster)
    assert agent.host.serving
