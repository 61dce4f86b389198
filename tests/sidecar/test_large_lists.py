"""A long list of owned bundles is rewritten for many locks at once, not for each few."""

import pytest
from stories import story

from loadmanager.agent import owned_list
from tests.testbed.faults import host
from tests.testbed.faults.cluster import Cluster, order

BUNDLES = 400


@story(2, checked=False)
async def test_locks_of_a_long_list_are_dropped_many_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owned_list, "_REWRITTEN_BYTES_PER_S", 10_000)
    boundaries = await cluster.make_namespace(BUNDLES)
    first, second = cluster.hosts
    leader_term = cluster.leader_term
    await order(leader_term, dict.fromkeys(boundaries.bundles, first.name))
    await cluster.until(lambda: len(first.serving) == BUNDLES)
    before = cluster.service.zxid
    await order(leader_term, dict.fromkeys(boundaries.bundles, second.name))
    await cluster.until(lambda: len(second.serving) == BUNDLES)
    spent = cluster.service.zxid - before
    assert spent < 17, "each few locks had a commit of their own"
    await cluster.settled(boundaries.bundles)


@story(2, checked=False)
async def test_what_is_served_by_now_is_listed_many_bundles_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owned_list, "_REWRITTEN_BYTES_PER_S", 10_000)
    monkeypatch.setattr(host, "LATENCY_S", 0.3)
    boundaries = await cluster.make_namespace(BUNDLES)
    first = cluster.hosts[0]
    before = cluster.service.zxid
    await order(cluster.leader_term, dict.fromkeys(boundaries.bundles, first.name))
    await cluster.until(lambda: len(first.serving) == BUNDLES)
    await cluster.settled(boundaries.bundles)
    spent = cluster.service.zxid - before
    assert spent < 40, "each few bundles had a list of their own"
