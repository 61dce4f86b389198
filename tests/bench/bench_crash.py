"""How long bundles are without an owner, and a cluster without its leader, after a crash.

Broker and sidecar of one host are killed at the same moment, as by a power cut. ZooKeeper
gives a session up at the first of its ticks after the timeout, so nobody can take over
sooner than that; the service has another second for all that it does. That bound holds
for each of ten crashes. Where a clock-watch beside the cluster shows that the machine
itself stood still for as long as a bound was missed by, the crash is repeated.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Final

import aiohttp
import pytest
from fault_clients import BUNDLES, CLIENTS, RATE_PER_S, Sidecars
from fault_cluster import HAND_OVER_S, FaultCluster, fault_cluster
from fault_hosts import MARGIN_S, Host
from fault_outcomes import drawn_from
from faults import victim
from figures import emit

from loadmanager.adapters.zookeeper.java import EmbeddedZooKeeperError, find_java
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import Namespace, TopicName
from loadmanager.demo.client import topic_path
from loadmanager.demo.cluster import HASH, NAMESPACE
from loadmanager.demo.traffic import topic_names
from loadmanager.reference_broker.changes import overlaps
from tests.testbed.checker.availability import Disturbance, gaps, recovery_s

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

CRASHES: Final = 10
MOST_REPEATED: Final = 5
LOOK_EVERY_S: Final = 0.02
ANSWER_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What the bound is made of."""

    session_timeout_s: float
    tick_s: float

    @property
    def bound_s(self) -> float:
        """Within this time all is well again."""
        return self.session_timeout_s + self.tick_s + MARGIN_S


SHORT: Final = Timing(session_timeout_s=3.0, tick_s=0.3)
DEFAULT: Final = Timing(session_timeout_s=10.0, tick_s=2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """Seconds from the kill until all was served again, and until somebody else led."""

    served_s: float
    new_leader_s: float
    bundles_lost: int
    lookups: int = 0
    failed: int = 0
    late: bool = False


async def test_a_crashed_brokers_bundles_are_soon_served_again(tmp_path: Path) -> None:
    async with crashing(tmp_path, SHORT) as cluster:
        crashes = await _crashes(cluster, SHORT, leader=False)
        assert overlaps(cluster.spells()) == []
    _tell("crash of a broker and its sidecar, until all is served again", SHORT, crashes)
    assert max(one.served_s for one in crashes if not one.late) <= SHORT.bound_s


@pytest.mark.parametrize("timing", [SHORT, DEFAULT], ids=["short", "default"])
async def test_a_crashed_leader_is_soon_replaced_and_no_lookup_fails(
    tmp_path: Path, timing: Timing
) -> None:
    async with crashing(tmp_path, timing) as cluster:
        crashes = await _crashes(cluster, timing, leader=True)
        assert overlaps(cluster.spells()) == []
    new_leader_s = [one.new_leader_s for one in crashes if not one.late]
    _tell(
        "crash of the leader and its broker, until another leads and all is served again",
        timing,
        crashes,
        new_leader_median_s=median(new_leader_s),
        new_leader_worst_s=max(new_leader_s),
        lookups=sum(one.lookups for one in crashes),
        lookups_failed=sum(one.failed for one in crashes),
    )
    assert max(new_leader_s) <= timing.bound_s
    assert max(one.served_s for one in crashes if not one.late) <= timing.bound_s
    assert sum(one.lookups for one in crashes) > 0
    assert sum(one.failed for one in crashes) == 0


@asynccontextmanager
async def crashing(folder: Path, timing: Timing) -> AsyncIterator[FaultCluster]:
    """Yield a running cluster, if one can run here."""
    try:
        find_java()
    except EmbeddedZooKeeperError as error:
        pytest.skip(str(error))
    async with fault_cluster(
        folder, session_timeout_s=timing.session_timeout_s, tick_s=timing.tick_s
    ) as cluster:
        yield cluster


async def _crashes(cluster: FaultCluster, timing: Timing, *, leader: bool) -> list[Crash]:
    """Return ten crashes, and those besides that the machine left open."""
    crashes: list[Crash] = []
    rng = drawn_from(1)
    async with aiohttp.ClientSession() as http:
        while sum(not one.late for one in crashes) < CRASHES:
            host = await (cluster.leader() if leader else victim(cluster, rng))
            crashes.append(await _crash(cluster, http, timing, host, leader=leader))
            assert sum(one.late for one in crashes) <= MOST_REPEATED, crashes
    return crashes


async def _crash(
    cluster: FaultCluster, http: aiohttp.ClientSession, timing: Timing, host: Host, *, leader: bool
) -> Crash:
    others = [one for one in cluster.hosts if one is not host]
    lost = cluster.owned_by(host)
    lookups = Lookups(http, others)
    asking = asyncio.create_task(lookups.run()) if leader else None
    from_s = monotonic()
    await host.kill(sidecar=True, broker=True)
    new_leader_s = (await _led_by_another(http, host, others)) - from_s if leader else 0.0
    await cluster.until_well(since_s=from_s + timing.session_timeout_s)
    until_s = monotonic()
    if asking is not None:
        asking.cancel()
    killed = Disturbance(what="kill", began_s=from_s, healed_s=from_s, within_s=timing.bound_s)
    found = gaps(cluster.spells(), cluster.bundles, from_s=from_s, until_s=until_s)
    served_s = recovery_s(found, killed, hand_over_s=HAND_OVER_S)
    over_s = max(served_s, new_leader_s) - timing.bound_s
    slowness = cluster.stalls().between(from_s, until_s)
    await cluster.restore()
    return Crash(
        served_s=served_s,
        new_leader_s=new_leader_s,
        bundles_lost=lost,
        lookups=lookups.asked,
        failed=len(lookups.failures),
        late=over_s > 0 and slowness.explains(over_s),
    )


async def _led_by_another(http: aiohttp.ClientSession, dead: Host, others: list[Host]) -> float:
    """Return when all others named one of them as leader."""
    sidecars = Sidecars(http)
    living = {one.broker for one in others}
    while True:
        named = {await sidecars.leader(one) for one in others}
        if len(named) == 1 and named <= living:
            return monotonic()
        assert dead.broker not in living
        await asyncio.sleep(LOOK_EVERY_S)


class Lookups:
    """Clients that ask every living sidecar for a topic of every bundle, all the time.

    A client that asks where it is waits for an answer, through redirects: anything but the
    owner's address is a failure. That counts the bundles of the dead, too.
    """

    def __init__(self, http: aiohttp.ClientSession, hosts: list[Host]) -> None:
        self._http = http
        self._hosts = hosts
        boundaries = Boundaries.even(Namespace(NAMESPACE), BUNDLES)
        self._topics = topic_names(BUNDLES, boundaries, HASH)
        self.asked = 0
        self.failures: list[str] = []

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as clients:
            for host in self._hosts:
                clients.create_task(self._ask_for_ever(host))

    async def _ask_for_ever(self, host: Host) -> None:
        while True:
            for topic in self._topics:
                await self._ask(host, topic)
                await asyncio.sleep(LOOK_EVERY_S)

    async def _ask(self, host: Host, topic: TopicName) -> None:
        url = f"{host.sidecar_url}/lookup/v2/topic/{topic_path(topic)}"
        self.asked += 1
        try:
            async with self._http.get(url, timeout=ANSWER_TIMEOUT) as answer:
                if answer.status != HTTPStatus.OK:
                    self.failures.append(f"{url}: {answer.status} {await answer.text()}")
        except (aiohttp.ClientError, TimeoutError) as error:
            self.failures.append(f"{url}: {error!r}")


def _tell(figure: str, timing: Timing, crashes: list[Crash], **more: float) -> None:
    counted = [one for one in crashes if not one.late]
    emit(
        "crash",
        figure=figure,
        served_again_median_s=median(one.served_s for one in counted),
        served_again_worst_s=max(one.served_s for one in counted),
        **more,
        bound_s=timing.bound_s,
        session_timeout_s=timing.session_timeout_s,
        zookeeper_tick_s=timing.tick_s,
        crashes=len(counted),
        repeated_as_the_machine_stood_still=len(crashes) - len(counted),
        bundles_lost=[one.bundles_lost for one in counted],
        brokers=3,
        bundles=BUNDLES,
        clients=CLIENTS,
        messages_per_s=RATE_PER_S,
    )
