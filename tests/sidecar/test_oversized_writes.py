import asyncio

import pytest
from stories import place_all, served, story

from loadmanager.agent import locks
from loadmanager.common.context import LOG_EVERY_S, REST_S
from loadmanager.core import znodes
from loadmanager.core.ids import BundleId
from loadmanager.core.orders import SplitOrder
from loadmanager.core.wire.shared_forms import range_text
from loadmanager.ports.lookup import Unavailable
from tests.testbed.faults import host
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import NAMESPACE, Cluster, order, topic_in

TOLD = "zookeeper.write.too_large"
NO_LIMIT = 0xFFFFF


def _refused(agent: Agent, kind: str) -> float:
    return agent.metric("loadmanager_oversized_writes_total", kind=kind)


def _served(cluster: Cluster) -> set[BundleId]:
    return {bundle for host in cluster.hosts for bundle in host.serving}


@story(3)
async def test_locks_that_do_not_fit_go_to_other_brokers(cluster: Cluster) -> None:
    small = next(agent for agent in cluster.living if not agent.leads)
    session_id = small.coordination.session.session_id
    small.coordination.max_request_bytes = 1900
    boundaries = await cluster.make_namespace(300)
    asking = cluster.leader
    topics = [topic_in(boundaries, bundle) for bundle in boundaries.bundles]
    await asyncio.gather(*(asking.look_up(topic) for topic in topics), return_exceptions=True)
    await cluster.settled(boundaries.bundles, within_s=10 * SESSION_S)
    others = [len(one.host.serving) for one in cluster.living if one is not small]
    assert 10 < len(small.host.serving) < min(others)
    assert _refused(small, "locks") >= 1
    told = cluster.warnings(TOLD)
    assert told
    assert told[0]["kind"] == "locks"
    assert told[0]["subject"] in boundaries.bundles
    assert told[0]["size_bytes"] > told[0]["limit_bytes"]
    assert len(told) <= 1 + asyncio.get_running_loop().time() / LOG_EVERY_S
    assert small.coordination.session.session_id == session_id
    assert cluster.warnings("broker.membership.ended") == []

    # It is as good as before: what it has can be dropped, and there is room then for others.
    bundle = min(small.host.serving)
    await cluster.move_surely(bundle, asking.host)
    small.coordination.max_request_bytes = NO_LIMIT
    await asyncio.sleep(REST_S)
    await cluster.move_surely(bundle, small.host)


@story(3, seed=3)
async def test_orders_that_do_not_fit_fail_by_themselves(cluster: Cluster) -> None:
    leader = cluster.leader
    leader.coordination.max_request_bytes = 1000
    boundaries = await cluster.make_namespace(150)
    topics = [topic_in(boundaries, bundle) for bundle in boundaries.bundles]
    await asyncio.gather(*(leader.look_up(topic) for topic in topics), return_exceptions=True)
    served = _served(cluster)
    assert 20 < len(served) < 150
    assert _refused(leader, "orders") >= 1
    told = [one for one in cluster.warnings(TOLD) if one["kind"] == "orders"]
    assert told[0]["subject"] in {host.name for host in cluster.hosts}
    assert told[0]["size_bytes"] > told[0]["limit_bytes"] == 900
    await asyncio.sleep(3 * LOG_EVERY_S)
    told = [one for one in cluster.warnings(TOLD) if one["kind"] == "orders"]
    assert len(told) <= 2 + asyncio.get_running_loop().time() / LOG_EVERY_S
    assert served <= _served(cluster)
    assert cluster.leader is leader
    assert len(cluster.service.epochs) == 1
    assert cluster.warnings("broker.membership.ended") == []
    leader.coordination.max_request_bytes = NO_LIMIT
    await place_all(cluster, boundaries)


@story(2)
async def test_a_split_that_does_not_fit_leaves_the_bundle_whole(cluster: Cluster) -> None:
    boundaries = await served(cluster, 1)
    (whole,) = boundaries.bundles
    owner = next(one for one in cluster.living if whole in one.host.serving)
    owner.coordination.max_request_bytes = 1000
    order = SplitOrder("range_equally_divide")
    with pytest.raises(Unavailable, match="its broker's sidecar logs why"):
        await cluster.leader.app.bundle_requests.split(NAMESPACE, range_text(whole), order)
    await cluster.until(lambda: _refused(owner, "split") >= 2, within_s=30.0)
    (told,) = (one for one in cluster.warnings(TOLD) if one["kind"] == "split")
    assert (told["subject"], told["limit_bytes"]) == (whole, 1000)
    assert whole in owner.host.serving
    assert cluster.warnings("broker.membership.ended") == []
    owner.coordination.max_request_bytes = NO_LIMIT
    await cluster.until(lambda: len(_served(cluster) - {whole}) == 2, within_s=30.0)
    assert _served(cluster).isdisjoint({whole})


@story(2)
async def test_a_huge_state_ends_no_term(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = cluster.leader
    boundaries = await served(cluster, 4)
    monkeypatch.setattr(leader.coordination, "max_request_bytes", 300)
    await cluster.until(lambda: _refused(leader, "state") >= 2, within_s=300.0)
    assert any(one["subject"] == znodes.STATE for one in cluster.warnings(TOLD))
    monkeypatch.undo()
    await cluster.settled(boundaries.bundles)
    assert cluster.leader is leader


LISTED = 400


@story(2, checked=False)
async def test_many_bundles_are_listed_and_many_locks_dropped_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_REWRITTEN_BYTES_PER_S", 10_000)
    boundaries = await cluster.make_namespace(LISTED)
    for at, latency_s, most in zip(cluster.hosts, (0.3, host.LATENCY_S), (40, 17), strict=True):
        before = cluster.service.zxid
        with monkeypatch.context() as patch:
            patch.setattr(host, "LATENCY_S", latency_s)
            await order(cluster.leader_term, dict.fromkeys(boundaries.bundles, at.name))
            await cluster.until(lambda at=at: len(at.serving) == LISTED)  # type: ignore[misc] # bound now
            await cluster.settled(boundaries.bundles)
        assert cluster.service.zxid - before < most, "each few bundles had a list of their own"
