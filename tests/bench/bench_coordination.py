"""What sidecars ask of ZooKeeper, by how many there are: the real application in virtual time.

Each cluster has four bundles a broker and the default configuration. At rest nothing
changes; then the loads of all brokers change all the time; then one bundle a second is moved
by hand. Everything is counted at the service, so nothing depends on the machine. How many
sidecars: LOADMANAGER_BENCH_SIDECARS="5 10 20 40"; LOADMANAGER_BENCH_ONLY_AT_REST=1 for many.
"""

import asyncio
import gc
import os
import tracemalloc
from collections import Counter, defaultdict
from itertools import count
from typing import Final

import pytest
from counted_requests import CountingService, by_role, counted_cluster
from figures import emit
from prometheus_client import CollectorRegistry

from loadmanager.common.cluster_state import UNREAD_FOR_S, ClusterState
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import Namespace, parse_broker
from loadmanager.core.orders import encode_owned
from loadmanager.telemetry.metrics import Metrics
from tests.testbed.faults.cluster import Cluster, topic_in
from tests.testbed.faults.virtual_time import VirtualClock, run
from tests.testbed.memory import MemoryCoordination
from tests.testbed.memory.service import MemoryService

SIDECARS: Final = tuple(
    map(int, os.environ.get("LOADMANAGER_BENCH_SIDECARS", "5 10 20 40").split())
)
TIMEOUT_S: Final = 900 * max(1.0, (max(SIDECARS) / 100) ** 2)
"""Each sidecar reads the registrations of all others."""
ONLY_AT_REST: Final = "LOADMANAGER_BENCH_ONLY_AT_REST" in os.environ
BUNDLES_A_BROKER: Final = 4
REST_S: Final = 300.0
COUNTED_S: Final = 120.0
MOST_AT_REST_PER_S: Final = 1.0
SPREAD: Final = 1.05
MOST_LISTS_PER_S: Final = 1.1
"""One a second, and what had been saved for the beginning."""
MOST_BYTES_A_BUNDLE: Final = 400
KINDS: Final = ("heartbeat", "loads", "owned", "other reads", "writes")
pytestmark = [pytest.mark.bench, pytest.mark.timeout(TIMEOUT_S)]


PerS = dict[str, float]
"""Requests of each kind."""


def test_what_each_sidecar_asks_of_zookeeper() -> None:
    others: dict[str, list[tuple[int, PerS]]] = defaultdict(list)
    for sidecars in SIDECARS:
        for state, per_s in run(_measured(sidecars), cpu_limit_s=TIMEOUT_S).items():
            others[state].append((sidecars, per_s))
    at_rest = [sum(per_s.values()) for _, per_s in others["at rest"]]
    assert max(at_rest) <= MOST_AT_REST_PER_S
    assert max(at_rest) <= SPREAD * min(at_rest)
    for sidecars, per_s in others["a move a second"]:
        # A broker that takes one of the bundles reads the lists that changed before.
        assert per_s["owned"] <= MOST_LISTS_PER_S + 3 / sidecars


async def _measured(sidecars: int) -> dict[str, PerS]:
    """Return what one without a role asks, by the state of the cluster."""
    async with counted_cluster(sidecars) as (cluster, service):
        boundaries = await cluster.make_namespace(BUNDLES_A_BROKER * sidecars)
        topics = [topic_in(boundaries, bundle) for bundle in boundaries.bundles]
        await asyncio.gather(*map(cluster.agents[0].look_up, topics))
        # Lists that nobody needs are read one a second, after a while.
        await asyncio.sleep(max(REST_S, UNREAD_FOR_S + sidecars + 20.0))
        found = {"at rest": await _counted(cluster, service, "at rest")}
        for state in () if ONLY_AT_REST else ("loads change", "a move a second"):
            changing = state == "loads change"
            happening = _change_loads(cluster) if changing else _move(cluster, boundaries)
            task = asyncio.ensure_future(happening)
            await asyncio.sleep(COUNTED_S / 2)
            found[state] = await _counted(cluster, service, state)
            task.cancel()
            await asyncio.sleep(REST_S)
    return found


async def _change_loads(cluster: Cluster) -> None:
    while True:
        for host in cluster.hosts:
            host.cpu_fraction = cluster.rng.uniform(0.1, 0.6)
        await asyncio.sleep(1.0)


async def _move(cluster: Cluster, boundaries: Boundaries) -> None:
    """Move each bundle in turn to the broker beside its own."""
    bundles = boundaries.bundles
    for number in count():
        bundle = bundles[number % len(bundles)]
        at = cluster.hosts.index(cluster.server(bundle))
        await cluster.move_surely(bundle, cluster.hosts[(at + 1) % len(cluster.hosts)])
        await asyncio.sleep(1.0)


async def _counted(cluster: Cluster, service: CountingService, state: str) -> PerS:
    service.forget()
    await asyncio.sleep(COUNTED_S)
    found: dict[str, PerS] = {}
    for role, agents in by_role(cluster).items():
        asked: Counter[str] = Counter()
        for name, number in service.asked_by(agents).items():
            asked[_kind(name)] += number
        found[role] = {kind: asked[kind] / COUNTED_S / len(agents) for kind in KINDS}
        emit(
            "coordination",
            sidecars=len(cluster.living),
            state=state,
            role=role,
            requests_per_s=sum(found[role].values()),
            of_kind_per_s=found[role],
            bytes_per_s=service.bytes_of(agents) / COUNTED_S / len(agents),
            watches=service.watches_of(agents) / len(agents),
        )
    return found["other"]


def _kind(name: str) -> str:
    if name in {"heartbeat", "write"}:
        return {"heartbeat": "heartbeat", "write": "writes"}[name]
    folders = {"get /loadbalance/loads": "loads", "get /loadbalance/owned": "owned"}
    return folders.get(name, "other reads")


@pytest.mark.parametrize(("brokers", "bundles"), [(200, 20_000), (1_000, 100_000)])
def test_what_owners_take_of_memory(brokers: int, bundles: int) -> None:
    """Every sidecar knows all of them: each list as read, and whom each bundle is with."""
    taken_bytes = run(_memory_of_owners(brokers, bundles), cpu_limit_s=1500)
    emit(
        "coordination_memory",
        brokers=brokers,
        bundles=bundles,
        mib=taken_bytes / 2**20,
        bytes_a_bundle=taken_bytes / bundles,
    )
    assert taken_bytes / bundles <= MOST_BYTES_A_BUNDLE


async def _memory_of_owners(brokers: int, bundles: int) -> int:
    service = MemoryService()
    session = MemoryCoordination(service)
    await session.start()
    await asyncio.sleep(1.0)
    owned = Boundaries.even(Namespace("acme/orders"), bundles).bundles
    each = bundles // brokers
    for number in range(brokers):
        path = znodes.owned(parse_broker(f"broker{number}.example.org:8080"))
        mine = owned[each * number : each * (number + 1)]
        await session.create(path, encode_owned(dict.fromkeys(mine, 2**34 + number)))
    del owned, mine
    gc.collect()
    tracemalloc.start()
    cluster_state = ClusterState(session, VirtualClock(), Metrics(CollectorRegistry()))
    cluster_state.open()
    with cluster_state.lists.followed():
        while not (cluster_state.complete and len(cluster_state.owners) == bundles):
            await cluster_state.changes.wait(1.0)
    assert len(cluster_state.owners) == bundles
    gc.collect()
    taken_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await session.close()
    return taken_bytes
