"""A long list of owned bundles is rewritten for many locks at once, not for each few."""

import pytest
from stories import story

from loadmanager.agent import owned_list
from tests.testbed.faults import host
from tests.testbed.faults.cluster import Cluster, order

BUNDLES = 400


@story(2, checked=False)
async def test_many_bundles_are_listed_and_many_locks_dropped_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owned_list, "_REWRITTEN_BYTES_PER_S", 10_000)
    boundaries = await cluster.make_namespace(BUNDLES)
    for at, latency_s, most in zip(cluster.hosts, (0.3, host.LATENCY_S), (40, 17), strict=True):
        before = cluster.service.zxid
        with monkeypatch.context() as patch:
            patch.setattr(host, "LATENCY_S", latency_s)
            await order(cluster.leader_term, dict.fromkeys(boundaries.bundles, at.name))
            await cluster.until(lambda at=at: len(at.serving) == BUNDLES)  # type: ignore[misc] # bound now
            await cluster.settled(boundaries.bundles)
        assert cluster.service.zxid - before < most, "each few bundles had a list of their own"
