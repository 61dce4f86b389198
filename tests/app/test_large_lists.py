"""A long list of owned bundles is rewritten for many locks at once, not for each few."""

import pytest
from stories import story

from loadmanager.app import lock_worker
from loadmanager.faults.cluster import Cluster

BUNDLES = 400


@story(2, checked=False)
async def test_locks_of_a_long_list_are_dropped_many_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_worker, "_SMALL_LIST_BYTES", 100)
    monkeypatch.setattr(lock_worker, "_REWRITTEN_BYTES_PER_S", 10_000)
    boundaries = await cluster.make_namespace(BUNDLES)
    first, second = cluster.hosts
    desk = cluster.desk
    await desk.order(dict.fromkeys(boundaries.bundles, first.name))
    await cluster.until(lambda: len(first.serving) == BUNDLES)
    before = cluster.service.zxid
    await desk.order(dict.fromkeys(boundaries.bundles, second.name))
    await cluster.until(lambda: len(second.serving) == BUNDLES)
    spent = cluster.service.zxid - before
    assert spent < 17, "each few locks had a commit of their own"
    await cluster.settled(boundaries.bundles)
