"""Faults: each breaks something in a running cluster, mends it, and tells when it was what."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from time import monotonic

from fault_cluster import WITHIN_S, FaultCluster
from fault_hosts import SESSION_S, TICK_S, Host
from zookeeper_proxy import Loss
from zookeeper_servers import Server

from loadmanager.checker.availability import Disturbance, gaps, recovery_s
from loadmanager.checker.publishing import Publish
from loadmanager.checker.verdict import Verdict, judge

PAUSE_S = SESSION_S + 2 * TICK_S + 1.0
"""Longer than the session lives, and long enough for others to have taken over."""

SETTLED_S = 1.0
HAND_OVER_S = 0.2
"""A bundle that is free no longer was handed over, and not lost."""

GIVE_UP_BOUND_S = 20.0
PUBLISHED_WITHIN_S = WITHIN_S + 3.5
"""A client waits 1.5 s for a frozen broker, and up to a second before each new try."""

Fault = Callable[[FaultCluster, Random], Awaitable[Disturbance]]


def drawn_from(seed: int) -> Random:
    """Return a generator that draws the same victims for the same seed."""
    return Random(seed)  # noqa: S311 - no secret is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one fault did.

    Times count from the fault, or from when it was mended if the cluster cannot get over
    it by itself: ``recovery_s`` until the last bundle was served again, ``published_s``
    until the last topic whose messages were refused had one taken.
    """

    fault: str
    verdict: Verdict
    recovery_s: float
    published_s: float


async def inject(cluster: FaultCluster, fault: str, rng: Random) -> Outcome:
    """Let one of the known faults happen to a healthy cluster, and judge everything so far."""
    return await observe(cluster, fault, FAULTS[fault], rng)


async def observe(cluster: FaultCluster, name: str, fault: Fault, rng: Random) -> Outcome:
    """Let a fault happen to a healthy cluster, and judge everything so far."""
    from_s = monotonic()
    disturbance = await fault(cluster, rng)
    await cluster.until_well(since_s=disturbance.healed_s)
    await cluster.restore()
    settled_s = monotonic()
    await asyncio.sleep(SETTLED_S)
    await cluster.until_well(since_s=settled_s)
    until_s = monotonic()
    history = cluster.history([disturbance], from_s=from_s, until_s=until_s)
    found = gaps(history.spells, history.bundles, from_s=from_s, until_s=until_s)
    return Outcome(
        fault=name,
        verdict=judge(history),
        recovery_s=recovery_s(found, disturbance, longer_than_s=HAND_OVER_S),
        published_s=publish_recovery_s(history.publishes, disturbance),
    )


def publish_recovery_s(publishes: Sequence[Publish], disturbance: Disturbance) -> float:
    """Return how long after healing the last topic that had been refused was taken again."""
    refused: dict[str, float] = {}
    ended_s = disturbance.healed_s
    for one in sorted(publishes, key=lambda publish: publish.answered_s):
        if one.acknowledgement is None:
            refused.setdefault(one.topic, one.sent_s)
        elif disturbance.began_s <= refused.pop(one.topic, -1.0) <= disturbance.due_s:
            ended_s = max(ended_s, one.answered_s)
    return ended_s - disturbance.healed_s


async def victim(cluster: FaultCluster, rng: Random) -> Host:
    """Return a host that does not lead, and serves something if any of them does."""
    leader = await cluster.leader()
    others = [host for host in cluster.hosts if host is not leader]
    rng.shuffle(others)
    return max(others, key=lambda host: cluster.owned_by(host) > 0)


def now(what: str, began_s: float) -> Disturbance:
    """Return a fault that the cluster has to get over by itself from ``began_s`` on."""
    return Disturbance(what=what, began_s=began_s, healed_s=began_s, within_s=WITHIN_S)


# --- processes ---------------------------------------------------------------------


def killing(*, sidecar: bool = False, broker: bool = False, leader: bool = False) -> Fault:
    """Return a fault that kills processes of one host, for good."""

    async def kill(cluster: FaultCluster, rng: Random) -> Disturbance:
        host = await (cluster.leader() if leader else victim(cluster, rng))
        began_s = monotonic()
        await host.kill(sidecar=sidecar, broker=broker)
        await asyncio.sleep(WITHIN_S)
        return now(f"kill of host {host.number}", began_s)

    return kill


def restarting(*, sidecar: bool = False, broker: bool = False) -> Fault:
    """Return a fault that kills processes of one host and starts them at once."""

    async def restart(cluster: FaultCluster, rng: Random) -> Disturbance:
        host = await victim(cluster, rng)
        began_s = monotonic()
        await host.kill(sidecar=sidecar, broker=broker)
        await cluster.restore()
        return now(f"restart on host {host.number}", began_s)

    return restart


def freezing(
    *, sidecar: bool = False, broker: bool = False, leader: bool = False, pause_s: float = PAUSE_S
) -> Fault:
    """Return a fault that stops processes of one host for a while."""

    async def freeze(cluster: FaultCluster, rng: Random) -> Disturbance:
        host = await (cluster.leader() if leader else victim(cluster, rng))
        began_s = monotonic()
        host.send(signal.SIGSTOP, sidecar=sidecar, broker=broker)
        try:
            await asyncio.sleep(pause_s)
        finally:
            host.send(signal.SIGCONT, sidecar=sidecar, broker=broker)
        return now(f"freeze of host {host.number}", began_s)

    return freeze


# --- ZooKeeper ---------------------------------------------------------------------


async def restart_zookeeper(cluster: FaultCluster, _rng: Random) -> Disturbance:
    """Kill every server and start them again at once."""
    return await _lose(cluster, list(cluster.servers.members), for_s=0.0)


async def freeze_zookeeper(cluster: FaultCluster, _rng: Random) -> Disturbance:
    """Stop every server for longer than sessions live."""
    began_s = monotonic()
    for server in cluster.servers.members:
        server.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(PAUSE_S)
    finally:
        for server in cluster.servers.members:
            server.signal(signal.SIGCONT)
    return outage("frozen ZooKeeper", began_s)


async def lose_a_follower(cluster: FaultCluster, _rng: Random) -> Disturbance:
    """Kill one of the servers that follow; the service goes on."""
    began_s = monotonic()
    await _lose(cluster, [await cluster.servers.in_mode("follower")], for_s=WITHIN_S)
    return now("lost follower", began_s)


async def lose_the_servers_leader(cluster: FaultCluster, _rng: Random) -> Disturbance:
    """Kill the server that leads; the others elect one."""
    began_s = monotonic()
    await _lose(cluster, [await cluster.servers.in_mode("leader")], for_s=WITHIN_S)
    return now("lost ZooKeeper leader", began_s)


async def lose_the_majority(cluster: FaultCluster, _rng: Random) -> Disturbance:
    """Kill two of three servers for longer than sessions live."""
    leader = await cluster.servers.in_mode("leader")
    follower = await cluster.servers.in_mode("follower")
    return await _lose(cluster, [leader, follower], for_s=PAUSE_S)


async def fill_the_disk(cluster: FaultCluster, _rng: Random) -> Disturbance:
    """Let the servers write no more until they give up, then start them with room again."""
    began_s = monotonic()
    for server in cluster.servers.members:
        server.fill_disk()
    async with asyncio.timeout(GIVE_UP_BOUND_S):
        while any(server.running for server in cluster.servers.members):  # noqa: ASYNC110 - a process gives no event
            await asyncio.sleep(TICK_S)
    await cluster.servers.start()
    return outage("full disk", began_s)


async def _lose(cluster: FaultCluster, lost: list[Server], *, for_s: float) -> Disturbance:
    began_s = monotonic()
    for server in lost:
        server.kill()
    await asyncio.sleep(for_s)
    await cluster.servers.start()
    return outage(f"loss of {len(lost)} servers", began_s)


def outage(what: str, began_s: float) -> Disturbance:
    """Return a loss of ZooKeeper that ends now: sessions and locks may be gone."""
    return Disturbance(what=what, began_s=began_s, healed_s=monotonic(), within_s=WITHIN_S)


# --- the network between them ------------------------------------------------------


def cutting(*, silently: bool, leader: bool = False) -> Fault:
    """Return a fault that cuts one sidecar off from ZooKeeper for longer than its session."""

    async def cut(cluster: FaultCluster, rng: Random) -> Disturbance:
        host = await (cluster.leader() if leader else victim(cluster, rng))
        assert host.proxy is not None
        began_s = monotonic()
        if silently:
            host.proxy.silent = True
        else:
            host.proxy.cut()
        try:
            await asyncio.sleep(PAUSE_S)
        finally:
            host.proxy.silent = False
            # What was swallowed is lost: such a connection has to be made anew.
            host.proxy.drop()
            host.proxy.mend()
        return now(f"cut of host {host.number}", began_s)

    return cut


async def lose_replies(cluster: FaultCluster, rng: Random) -> Disturbance:
    """Kill a host, and have the others lose connections right after a write was applied."""
    host = await victim(cluster, rng)
    others = [one.proxy for one in cluster.hosts if one is not host and one.proxy is not None]
    began_s = monotonic()
    await host.kill(sidecar=True, broker=True)
    while monotonic() < began_s + WITHIN_S:
        # The takeover falls into the last of the session: lose most replies then.
        for proxy in others:
            proxy.loss = proxy.loss or Loss.REPLY
        await asyncio.sleep(rng.uniform(0.3, 0.9))
    for proxy in others:
        proxy.loss = None
    # Each loss costs a reconnection, so the time counts from when they end.
    return outage("lost replies", began_s)


FAULTS: Mapping[str, Fault] = {
    "kill sidecar": killing(sidecar=True),
    "kill broker": killing(broker=True),
    "kill both": killing(sidecar=True, broker=True),
    "kill leader": killing(sidecar=True, broker=True, leader=True),
    "kill leader's sidecar": killing(sidecar=True, leader=True),
    "restart sidecar": restarting(sidecar=True),
    "restart broker": restarting(broker=True),
    "restart both": restarting(sidecar=True, broker=True),
    "freeze sidecar": freezing(sidecar=True),
    "freeze broker": freezing(broker=True),
    "freeze both": freezing(sidecar=True, broker=True),
    "freeze leader": freezing(sidecar=True, broker=True, leader=True),
    "freeze leader's sidecar": freezing(sidecar=True, leader=True),
    "freeze both for a moment": freezing(sidecar=True, broker=True, pause_s=SESSION_S / 2),
    "freeze sidecar up to its session": freezing(sidecar=True, pause_s=SESSION_S + TICK_S / 2),
    "restart ZooKeeper": restart_zookeeper,
    "freeze ZooKeeper": freeze_zookeeper,
    "fill ZooKeeper's disk": fill_the_disk,
    "cut sidecar off": cutting(silently=False),
    "cut sidecar off silently": cutting(silently=True),
    "cut leader off silently": cutting(silently=True, leader=True),
    "lose replies": lose_replies,
    "lose a follower": lose_a_follower,
    "lose ZooKeeper's leader": lose_the_servers_leader,
    "lose ZooKeeper's majority": lose_the_majority,
}
ENSEMBLE_FAULTS = ("lose a follower", "lose ZooKeeper's leader", "lose ZooKeeper's majority")
PROXY_FAULTS = (
    *("cut sidecar off", "cut sidecar off silently", "cut leader off silently", "lose replies"),
)
