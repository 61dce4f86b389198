"""How long a bundle takes from the leader's order to its next owner, between real processes.

Beside it the floor in the same run: what ZooKeeper alone needs for the three commits and
two watches of a hand-over, between two bare clients. The bundle's old broker is asked to
stop and the new one to begin besides, over HTTP.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, Final

import pytest
from cluster_processes import ProcessCluster, SharingCluster, process_cluster
from figures import emit, percentile, summary_ms
from kazoo.client import KazooClient
from ordering_leader import OrderingLeader
from waiting import eventually

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.orders import OrderChanges
from loadmanager.reference_broker.changes import ServingInterval, overlaps

pytestmark = [pytest.mark.bench, pytest.mark.timeout(180)]

BUNDLES: Final = 32
HAND_OVERS: Final = 100
MEDIAN_BOUND_S: Final = 0.25
RATIO_BOUND: Final = 25.0
FLOOR_PATHS: Final = ("/bench/order", "/bench/released", "/bench/taken")


class Floor:
    def __init__(self, leader: KazooClient, owner: KazooClient) -> None:
        self._leader = leader
        self._owner = owner

    @classmethod
    @contextmanager
    def between_two_clients(cls, zookeeper: str) -> "Iterator[Floor]":
        clients = (KazooClient(zookeeper), KazooClient(zookeeper))
        try:
            for client in clients:
                client.start()
            for path in FLOOR_PATHS:
                clients[0].create(path, makepath=True)
            yield cls(*clients)
        finally:
            for client in clients:
                client.stop()
                client.close()

    def once(self) -> float:
        """Return the seconds for: commit, watch told, commit, watch told, commit."""
        order, released, taken = FLOOR_PATHS
        heard_order, heard_release = threading.Event(), threading.Event()
        self._owner.get(order, watch=lambda _: heard_order.set())
        self._leader.get(released, watch=lambda _: heard_release.set())
        began_s = monotonic()
        writes: list[Any] = [self._leader.set_async(order, b"order")]
        assert heard_order.wait(10)
        writes.append(self._owner.set_async(released, b"released"))
        assert heard_release.wait(10)
        self._leader.set(taken, b"taken")
        took_s = monotonic() - began_s
        for write in writes:
            write.get(timeout=10)
        return took_s


@dataclass(frozen=True, slots=True)
class HandOver:
    """One bundle from broker to broker: when ordered, and both servings around it."""

    ordered_s: float
    before: ServingInterval
    after: ServingInterval

    @property
    def duration_s(self) -> float:
        """From just before the orders are committed until the new owner serves."""
        return self.after.start_s - self.ordered_s

    @property
    def gap_s(self) -> float:
        return self.after.start_s - self.before.end_s


async def test_a_bundle_is_handed_over_in_a_few_times_what_zookeeper_needs(tmp_path: Path) -> None:
    async with process_cluster(tmp_path, brokers=2, bundles=BUNDLES) as processes:
        assert isinstance(processes.cluster, SharingCluster)
        async with OrderingLeader.campaigning(processes.cluster) as leader:
            await processes.start()
            hand_overs, floor_s = await _measure(processes, leader)
        twice_served = overlaps(processes.intervals())
    durations_s = [one.duration_s for one in hand_overs]
    emit(
        "hand_over",
        figure="order to next owner serving, beside three commits and two watches",
        median_ratio_to_floor=median(durations_s) / median(floor_s),
        p99_ratio_to_floor=percentile(durations_s, 99) / percentile(floor_s, 99),
        hand_over=summary_ms(durations_s),
        gap_in_service=summary_ms(one.gap_s for one in hand_overs),
        floor=summary_ms(floor_s),
        brokers=2,
        bundles_owned_by_both=BUNDLES,
    )
    assert twice_served == []
    assert median(durations_s) <= MEDIAN_BOUND_S
    assert median(durations_s) <= RATIO_BOUND * median(floor_s)


async def _measure(
    processes: ProcessCluster, leader: OrderingLeader
) -> tuple[list[HandOver], list[float]]:
    book = await leader.book(within_s=5.0)
    brokers = [member.broker for member in processes.cluster.members]
    bundles = processes.boundaries.bundles
    await book.write(
        OrderChanges({bundle: brokers[number % 2] for number, bundle in enumerate(bundles)})
    )
    await eventually(lambda: len(processes.served_now(processes.cluster.members)) == BUNDLES)
    bundle, ordered_s, floor_s = bundles[0], [], []
    with Floor.between_two_clients(processes.cluster.zookeeper) as floor:
        for number in range(1, HAND_OVERS + 1):
            ordered_s.append(monotonic())
            await book.write(OrderChanges({bundle: brokers[number % 2]}))
            await _arrived(processes, leader, bundle, brokers[number % 2], number)
            floor_s.append(await asyncio.to_thread(floor.once))
    servings = _servings(processes, bundle)
    hand_overs = zip(ordered_s, servings[:-1], servings[1:], strict=True)
    return [HandOver(*one) for one in hand_overs], floor_s


async def _arrived(
    processes: ProcessCluster,
    leader: OrderingLeader,
    bundle: BundleId,
    target: BrokerId,
    hand_overs: int,
) -> None:
    def listed() -> bool:
        holding = leader.cluster_state.owners.get(bundle)
        return holding is not None and holding.broker == target

    await eventually(listed)
    await eventually(lambda: len(_servings(processes, bundle)) == hand_overs + 1)


def _servings(processes: ProcessCluster, bundle: BundleId) -> list[ServingInterval]:
    found = [one for one in processes.intervals() if one.bundle == bundle]
    return sorted(found, key=lambda one: one.start_s)
