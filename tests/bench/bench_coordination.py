"""What sidecars ask of ZooKeeper, by how many there are: the real application in virtual time.

Each cluster has four bundles a broker and the default configuration. At rest nothing
changes; then the loads of all brokers change all the time; then one bundle a second is moved
by hand. Everything is counted at the service, so nothing depends on the machine. How many
sidecars: LOADMANAGER_BENCH_SIDECARS="5 10 20 40".
"""

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

import pytest
from counted_requests import CountingService, by_role, counted_cluster
from figures import emit

from loadmanager.core.bundles import Boundaries
from loadmanager.testbed.faults.agent import Agent
from loadmanager.testbed.faults.cluster import Cluster, topic_in
from loadmanager.testbed.faults.virtual_time import run

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

SIDECARS: Final = tuple(
    map(int, os.environ.get("LOADMANAGER_BENCH_SIDECARS", "5 10 20 40").split())
)
BUNDLES_A_BROKER: Final = 4
REST_S: Final = 300.0
COUNTED_S: Final = 120.0
MOST_AT_REST_PER_S: Final = 1.0
SPREAD: Final = 1.05
KINDS: Final = ("heartbeat", "loads", "owned", "other reads", "writes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the sidecars of one role asked in one state of the cluster, for each of them."""

    sidecars: int
    state: str
    role: str
    per_s: dict[str, float]
    bytes_per_s: float
    watches: float

    @property
    def all_per_s(self) -> float:
        """All requests a second."""
        return sum(self.per_s.values())


def test_what_each_sidecar_asks_of_zookeeper() -> None:
    rows = [row for sidecars in SIDECARS for row in run(_measured(sidecars), cpu_limit_s=600)]
    _print(rows)
    for row in rows:
        emit(
            "coordination",
            sidecars=row.sidecars,
            state=row.state,
            role=row.role,
            requests_per_s=row.all_per_s,
            of_kind_per_s=row.per_s,
            bytes_per_s=row.bytes_per_s,
            watches=row.watches,
        )
    others = [row.all_per_s for row in rows if (row.state, row.role) == ("at rest", "other")]
    assert max(others) <= MOST_AT_REST_PER_S
    assert max(others) <= SPREAD * min(others)


async def _measured(sidecars: int) -> list[Row]:
    async with counted_cluster(sidecars) as (cluster, service):
        boundaries = await cluster.make_namespace(BUNDLES_A_BROKER * sidecars)
        for bundle in boundaries.bundles:
            await cluster.agents[0].look_up(topic_in(boundaries, bundle))
        await asyncio.sleep(REST_S)
        rows = await _counted(cluster, service, "at rest")
        for state, happening in (
            ("loads change", _change_loads(cluster)),
            ("a move a second", _move(cluster, boundaries)),
        ):
            task = asyncio.ensure_future(happening)
            await asyncio.sleep(COUNTED_S / 2)
            rows += await _counted(cluster, service, state)
            task.cancel()
            await asyncio.sleep(REST_S)
    return rows


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


async def _counted(cluster: Cluster, service: CountingService, state: str) -> list[Row]:
    service.forget()
    await asyncio.sleep(COUNTED_S)
    rows = by_role(cluster).items()
    return [_row(service, len(cluster.living), state, role, agents) for role, agents in rows]


def _row(
    service: CountingService, sidecars: int, state: str, role: str, agents: Sequence[Agent]
) -> Row:
    asked: Counter[str] = Counter()
    for name, number in service.asked_by(agents).items():
        asked[_kind(name)] += number
    return Row(
        sidecars=sidecars,
        state=state,
        role=role,
        per_s={kind: asked[kind] / COUNTED_S / len(agents) for kind in KINDS},
        bytes_per_s=service.bytes_of(agents) / COUNTED_S / len(agents),
        watches=service.watches_of(agents) / len(agents),
    )


def _kind(name: str) -> str:
    if name in {"heartbeat", "write"}:
        return {"heartbeat": "heartbeat", "write": "writes"}[name]
    folders = {"get /loadbalance/loads": "loads", "get /loadbalance/owned": "owned"}
    return folders.get(name, "other reads")


def _print(rows: Sequence[Row]) -> None:
    columns = (*KINDS, "requests/s", "bytes/s", "watches")
    print(f"\n{'sidecars':>8} {'state':16}{'role':10}" + "".join(f"{one:>13}" for one in columns))
    for row in rows:
        figures = [*(row.per_s[kind] for kind in KINDS), row.all_per_s]
        print(
            f"{row.sidecars:>8} {row.state:16}{row.role:10}"
            + "".join(f"{one:13.3f}" for one in figures)
            + f"{row.bytes_per_s:13.0f}{row.watches:13.1f}"
        )
