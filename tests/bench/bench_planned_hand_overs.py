"""Five hundred planned hand-overs between real processes, with clients at work all the time.

Bundles move because the leader's rounds shed load, because somebody unloads them with a
destination, and because brokers are drained, four bundles at once as everywhere.

What counts is the *service's own part* of each: from the instant the old owner served its
last request of the bundle to the instant the new owner serves it. What the broker itself
needs to finish requests and to close the bundle's topics lies before that and is told
beside it; the in-memory broker needs no time to open them. Both instants are of the
brokers' own records, on the one monotonic clock of this machine.

A client keeps the owner that it found. A message that is refused is tried again after 25
to 50 ms, twice as long each time up to a second, for 30 s, each time with a new lookup at
the next sidecar: it has failed when nobody took it by then. A lookup has failed when a
sidecar that can be reached answers anything but an owner.
"""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Final

import pytest
from cluster_processes import ProcessCluster, process_cluster
from figures import TooSlow, emit, percentile, summary_ms
from planned_hand_overs import HTTP_OK, HandOver, Refusals, hand_overs_in, refusals_in

from loadmanager.core.hashing import position
from loadmanager.core.ids import BrokerId, parse_topic
from loadmanager.demo.children import Child
from loadmanager.demo.client import TrafficReport
from loadmanager.demo.cluster import HASH, NAMESPACE, Member
from loadmanager.demo.traffic import TrafficSettings
from loadmanager.reference_broker.changes import overlaps

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

BROKERS: Final = 4
BUNDLES: Final = 32
BY_ROUND: Final = 4
BY_UNLOAD: Final = 300
ALL: Final = 500
MESSAGES_PER_S: Final = 100.0
EXPECTED_PER_S: Final = 480.0
"""So that a message costs half a millisecond: here two cores stand for a dozen hosts."""

PAUSE_S: Final = 0.05
LOOKUPS_PER_S: Final = 50.0
P99_BOUND_S: Final = 0.1
PLACED_BOUND_S: Final = 60.0
DRAIN_BOUND_S: Final = 60.0
SHEDDING_BOUND_S: Final = 45.0
LOOK_EVERY_S: Final = 0.05


class Clients:
    """One process that publishes to all bundles and looks owners up, until it is stopped."""

    def __init__(self, child: Child, record: Path) -> None:
        self._child = child
        self.record = record

    @classmethod
    async def starting(cls, processes: ProcessCluster, data_dir: Path) -> "Clients":
        """Start it, and return when every topic has an owner."""
        record, file = data_dir / "publishes.jsonl", data_dir / "traffic.json"
        TrafficSettings(
            sidecar_urls=tuple(member.sidecar_url for member in processes.cluster.members),
            namespace=NAMESPACE,
            hash_name=HASH,
            bundles=BUNDLES,
            topics=BUNDLES,
            seed=1,
            rate_per_s=MESSAGES_PER_S,
            lookups_per_s=LOOKUPS_PER_S,
        ).save(file)
        child = await processes.children.start(
            "traffic", "-m", "tests.testbed.checker.publishes", str(file), str(record)
        )
        clients = cls(child, record)
        async with asyncio.timeout(PLACED_BOUND_S):
            while not clients._reports():
                child.require_running()
                await asyncio.sleep(LOOK_EVERY_S)
        return clients

    async def finish(self) -> TrafficReport:
        """Let what is due be published, and return the last counts."""
        self._child.send(signal.SIGTERM)
        await self._child.process.wait()
        return self._reports()[-1]

    def _reports(self) -> list[TrafficReport]:
        lines = self._child.log_path.read_text().split("\n")[:-1]
        return [TrafficReport.from_line(line) for line in lines if line.startswith("{")]


@dataclass(frozen=True, slots=True)
class Run:
    """What five hundred hand-overs left behind, the times of each kind of them apart."""

    by_round: Sequence[HandOver]
    by_unload: Sequence[HandOver]
    by_drain: Sequence[HandOver]
    drains: int
    told: TrafficReport
    refused: Refusals
    took_s: float

    @property
    def hand_overs(self) -> Sequence[HandOver]:
        """All of them."""
        return [*self.by_round, *self.by_unload, *self.by_drain]


# It measures with a dozen processes on two cores: where others use them too, it measures again.
@pytest.mark.flaky(reruns=2, only_rerun=["TooSlow"])
async def test_a_planned_hand_over_takes_the_service_a_tenth_of_a_second(tmp_path: Path) -> None:
    async with process_cluster(
        tmp_path, brokers=BROKERS, bundles=BUNDLES, rate_per_s=EXPECTED_PER_S
    ) as processes:
        await processes.start()
        clients = await Clients.starting(processes, tmp_path)
        run = await _hand_over(processes, clients)
        twice_served = overlaps(processes.intervals())
    _tell(run)
    assert len(run.hand_overs) >= ALL
    assert twice_served == []
    assert (run.told.publish_errors, run.told.lookup_errors) == (0, 0), run.told
    assert run.refused.too_early == 0
    p99_s = percentile((one.service_s for one in run.hand_overs), 99)
    if p99_s > P99_BOUND_S:
        raise TooSlow(f"a p99 of {p99_s:.3f} s; expected at most {P99_BOUND_S:g} s")


async def _hand_over(processes: ProcessCluster, clients: Clients) -> Run:
    begun_s = monotonic()
    await _shed(processes)
    shed = len(_hand_overs(processes))
    await _unload(processes)
    unloaded = len(_hand_overs(processes))
    drains = await _drain(processes)
    told = await clients.finish()
    took_s = monotonic() - begun_s
    found = _hand_overs(processes)
    return Run(
        by_round=found[:shed],
        by_unload=found[shed:unloaded],
        by_drain=found[unloaded:],
        drains=drains,
        told=told,
        refused=refusals_in(clients.record, found, lambda topic: _bundle_of(processes, topic)),
        took_s=took_s,
    )


def _tell(run: Run) -> None:
    kinds = {"by_round": run.by_round, "by_unload": run.by_unload, "by_drain": run.by_drain}
    emit(
        "planned_hand_overs",
        figure="old owner stopped to new owner serving",
        hand_overs=len(run.hand_overs),
        service=summary_ms(one.service_s for one in run.hand_overs),
        **{kind: summary_ms(one.service_s for one in some) for kind, some in kinds.items() if some},
        drains=run.drains,
        closing_topics=summary_ms(one.stopped_s - one.asked_s for one in run.hand_overs),
        messages_first_refused=run.refused.first,
        refused_again_by_who_had_just_stopped=run.refused.stopped,
        refused_by_who_did_not_serve_yet=run.refused.too_early,
        refused_until_taken=summary_ms(run.refused.waits_s),
        published=run.told.published,
        publish_errors=run.told.publish_errors,
        lookups=run.told.lookups,
        lookup_errors=run.told.lookup_errors,
        took_s=run.took_s,
        brokers=BROKERS,
        bundles=BUNDLES,
        messages_per_s=MESSAGES_PER_S,
        lookups_per_s=LOOKUPS_PER_S,
    )


def _bundle_of(processes: ProcessCluster, topic: str) -> str:
    return processes.boundaries.at(position(parse_topic(topic), HASH))


def _hand_overs(processes: ProcessCluster) -> list[HandOver]:
    return hand_overs_in(member.record_path for member in processes.cluster.members)


async def _shed(processes: ProcessCluster) -> None:
    """Let the leader's rounds move some of the bundles of the broker that the clients heat."""
    until_s = monotonic() + SHEDDING_BOUND_S
    while len(_hand_overs(processes)) < BY_ROUND and monotonic() < until_s:  # noqa: ASYNC110 - read from files
        await asyncio.sleep(1.0)


async def _unload(processes: ProcessCluster) -> None:
    """Unload one bundle after the other, each to the broker after the one that has it."""
    members = processes.cluster.members
    numbers = {member.broker: number for number, member in enumerate(members)}
    served = processes.served_now(members)
    place = {bundle: numbers[BrokerId(served[bundle].broker)] for bundle in served}
    for number in range(BY_UNLOAD):
        bundle = processes.boundaries.bundles[number % BUNDLES]
        place[bundle] = (place[bundle] + 1 + number // BUNDLES % (BROKERS - 1)) % BROKERS
        target = members[place[bundle]]
        url = f"{members[number % BROKERS].sidecar_url}/admin/v2/namespaces/{bundle}/unload"
        async with processes.http.put(url, params={"destinationBroker": target.broker}) as answer:
            assert answer.status == 204, await answer.text()
        # As far apart as by hand: what is measured is a hand-over, not how many fit two cores.
        await asyncio.sleep(PAUSE_S)


async def _drain(processes: ProcessCluster) -> int:
    """Empty one broker after the other until there were enough hand-overs; return how often."""
    for number in count():
        if len(_hand_overs(processes)) >= ALL:
            return number
        await _drain_one(processes, processes.cluster.members[number % BROKERS])
    raise AssertionError


async def _drain_one(processes: ProcessCluster, member: Member) -> None:
    url = f"{member.sidecar_url}/admin/v2/loadmanager/brokers/{member.broker}/drain"
    async with processes.http.put(url) as answer:
        assert answer.status == 204, await answer.text()
    async with asyncio.timeout(DRAIN_BOUND_S):
        while await _bundles_left(processes, url.removesuffix("/drain")):  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(LOOK_EVERY_S)
    async with processes.http.delete(url) as answer:
        assert answer.status == 204, await answer.text()


async def _bundles_left(processes: ProcessCluster, url: str) -> int:
    async with processes.http.get(url) as answer:
        told = await answer.json()
    # A sidecar that waits for ZooKeeper cannot tell: ask again.
    return int(told["bundlesLeft"]) if answer.status == HTTP_OK else BUNDLES
