"""Every fault by its name: of processes, of the network, of ZooKeeper, and two at a time."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from time import monotonic

import pytest
from fault_cluster import HAND_OVER_S, SESSION_S, TICK_S, WITHIN_S, FaultCluster, Host
from fault_stalls import Slowness, Stalls
from zookeeper_proxy import Loss
from zookeeper_servers import Server

from loadmanager.cli.running import DISPLACED
from loadmanager.demo.cluster import Child, free_ports
from tests.testbed.checker.availability import Disturbance, Gap, gaps, recovery_s
from tests.testbed.checker.publishes import Publish
from tests.testbed.checker.verdict import Verdict, judge

PAUSE_S = SESSION_S + TICK_S + 0.8
"""Longer than the session lives, and long enough for others to have taken over."""

SETTLED_S = 0.5
PUBLISHED_WITHIN_S = WITHIN_S + 3.5
"""A client waits 1.5 s for a frozen broker, and up to a second before each new try."""

MOST_ATTEMPTS = 3
Fault = Callable[[FaultCluster, Random], Awaitable[Disturbance]]
"""Breaks something in a running cluster, mends it, and tells when it was broken."""


def drawn_from(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - no secret is drawn


class Finding(StrEnum):
    KEPT = "kept"
    BROKEN = "BROKEN"
    INCONCLUSIVE = "inconclusive"
    """Nobody served a bundle for too long, while the machine itself stood still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one fault did.

    Times count from the fault, or from when it was mended if the cluster cannot get over
    it by itself: ``recovery_s`` until the last bundle was served again, ``published_s``
    until the last topic whose messages were refused had one taken. ``within_s`` bounds
    the first. ``slowness`` is the machine's from the fault until all was well.
    ``unserved_s`` is the longest that nobody served a bundle while the fault lasted.
    """

    fault: str
    verdict: Verdict
    recovery_s: float
    published_s: float
    within_s: float
    slowness: Slowness
    finding: Finding
    unserved_s: float

    def __str__(self) -> str:
        told = (
            f"{self.fault:46} served again after {self.recovery_s:5.2f} s of {self.within_s:.2f}, "
            f"taken again after {self.published_s:5.2f} s: {self.finding}"
        )
        why = [str(self.slowness)] if self.finding is Finding.INCONCLUSIVE else []
        return "\n  ".join((told, *why, *self.verdict.violations))


async def observe(cluster: FaultCluster, name: str, fault: Fault, rng: Random) -> Outcome:
    from_s = monotonic()
    disturbance = await fault(cluster, rng)
    await cluster.until_well(since_s=max(disturbance.healed_s, monotonic() - SETTLED_S))
    await cluster.restore()
    settled_s = monotonic()
    await asyncio.sleep(SETTLED_S)
    await cluster.until_well(since_s=settled_s)
    until_s = monotonic()
    history = cluster.history([disturbance], from_s=from_s, until_s=until_s)
    stalls, verdict = cluster.stalls(), judge(history)
    found = gaps(history.intervals, history.bundles, from_s=from_s, until_s=until_s)
    recovered_s = recovery_s(found, disturbance, hand_over_s=HAND_OVER_S)
    during = (
        gap.lasted_s
        for gap in found
        if gap.end_s > disturbance.began_s and gap.start_s < disturbance.healed_s
    )
    return Outcome(
        fault=name,
        verdict=verdict,
        recovery_s=recovered_s,
        published_s=publish_recovery_s(history.publishes, disturbance),
        within_s=disturbance.within_s,
        slowness=stalls.between(disturbance.began_s, disturbance.healed_s + recovered_s),
        finding=finding(verdict, disturbance, stalls),
        unserved_s=max(during, default=0.0),
    )


async def observe_until_sure(
    cluster: FaultCluster, name: str, fault: Fault, rng: Random
) -> Sequence[Outcome]:
    """Observe a fault, and again where the machine left it open; return every outcome."""
    outcomes: list[Outcome] = []
    while len(outcomes) < MOST_ATTEMPTS:
        outcomes.append(await observe(cluster, name, fault, rng))
        if outcomes[-1].finding is not Finding.INCONCLUSIVE:
            break
    return outcomes


def finding(verdict: Verdict, disturbance: Disturbance, stalls: Stalls) -> Finding:
    """Return what a verdict comes to: only bounds on time are promises of a machine with room."""
    if verdict.overlaps or verdict.misplaced or verdict.token_faults:
        return Finding.BROKEN
    if not verdict.unserved:
        return Finding.KEPT
    explained = all(_explained(gap, disturbance, stalls) for gap in verdict.unserved)
    return Finding.INCONCLUSIVE if explained else Finding.BROKEN


def _explained(gap: Gap, disturbance: Disturbance, stalls: Stalls) -> bool:
    """Return whether the machine stood still for as long as a gap lasted too long.

    That is its time beyond what the fault accounts for; a session that ended by itself
    was lost in the time before.
    """
    felt = gap.end_s > disturbance.began_s and gap.start_s < disturbance.due_s
    late_s = gap.end_s - disturbance.due_s if felt and gap.end_s > disturbance.due_s else 0.0
    late_s = late_s or gap.lasted_s
    return stalls.between(gap.start_s - SESSION_S, gap.end_s).explains(late_s)


def publish_recovery_s(publishes: Sequence[Publish], disturbance: Disturbance) -> float:
    refused: dict[str, float] = {}
    ended_s = disturbance.healed_s
    for one in sorted(publishes, key=lambda publish: publish.answered_s):
        if one.acknowledgement is None:
            refused.setdefault(one.topic, one.sent_s)
            continue
        since_s = refused.pop(one.topic, one.answered_s)
        long = one.answered_s - since_s > HAND_OVER_S
        if long and disturbance.began_s <= since_s <= disturbance.due_s:
            ended_s = max(ended_s, one.answered_s)
    return ended_s - disturbance.healed_s


def now(what: str, began_s: float, *hosts: Host) -> Disturbance:
    return Disturbance(
        what=what,
        began_s=began_s,
        healed_s=began_s,
        within_s=WITHIN_S,
        brokers=frozenset(host.broker for host in hosts),
    )


def outage(what: str, began_s: float) -> Disturbance:
    """Return a loss of ZooKeeper that ends now: sessions and locks may be gone, anybody's."""
    return Disturbance(what=what, began_s=began_s, healed_s=monotonic(), within_s=WITHIN_S)


async def restart_zookeeper(cluster: FaultCluster, _rng: Random) -> Disturbance:
    return await _lose(cluster, list(cluster.servers.members), for_s=0.0)


async def freeze_zookeeper(cluster: FaultCluster, _rng: Random) -> Disturbance:
    began_s = monotonic()
    for server in cluster.servers.members:
        server.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(PAUSE_S)
    finally:
        for server in cluster.servers.members:
            server.signal(signal.SIGCONT)
    return outage("frozen ZooKeeper", began_s)


def losing(mode: str) -> Fault:
    """Return a fault that kills a server in this mode; the service goes on."""

    async def lose(cluster: FaultCluster, _rng: Random) -> Disturbance:
        began_s = monotonic()
        await _lose(cluster, [await cluster.servers.in_mode(mode)], for_s=WITHIN_S)
        return now(f"lost {mode} of ZooKeeper", began_s)

    return lose


async def lose_the_majority(cluster: FaultCluster, _rng: Random) -> Disturbance:
    leader = await cluster.servers.in_mode("leader")
    follower = await cluster.servers.in_mode("follower")
    return await _lose(cluster, [leader, follower], for_s=PAUSE_S)


async def stop_the_writes(cluster: FaultCluster, _rng: Random) -> Disturbance:
    """Let the servers write no more, then start them with room again.

    A single server gives up and ends; those of an ensemble may hang instead.
    """
    began_s = monotonic()
    for server in cluster.servers.members:
        server.stop_writes()
    await asyncio.sleep(PAUSE_S)
    cluster.servers.stop()
    await cluster.servers.start()
    return outage("failing writes", began_s)


async def _lose(cluster: FaultCluster, lost: list[Server], *, for_s: float) -> Disturbance:
    began_s = monotonic()
    for server in lost:
        server.kill()
    await asyncio.sleep(for_s)
    await cluster.servers.start()
    return outage(f"loss of {len(lost)} servers", began_s)


DISPLACED_BOUND_S = 10.0


async def keeps_its_promises(cluster: FaultCluster, fault: str) -> Outcome:
    """Return what a fault came to that broke no promise; fail if it did.

    Skips where the machine stood still at every attempt: that shows nothing.
    """
    outcomes = await observe_until_sure(cluster, fault, FAULTS[fault], drawn_from(1))
    last = outcomes[-1]
    if last.finding is Finding.INCONCLUSIVE:
        pytest.skip(f"inconclusive {len(outcomes)} times: {last}")
    assert last.finding is Finding.KEPT, str(last)
    assert last.recovery_s <= last.within_s
    return last


async def victim(cluster: FaultCluster, rng: Random, *, leader: bool = False) -> Host:
    """Return the leader's host, or another one."""
    leading = await cluster.leader()
    others = [host for host in cluster.hosts if host is not leading]
    return leading if leader else one_of(others, cluster, rng)


def one_of(hosts: Sequence[Host], cluster: FaultCluster, rng: Random) -> Host:
    """Return a host that serves something, if any of them does."""
    drawn = rng.sample(hosts, len(hosts))
    return max(drawn, key=lambda host: cluster.owned_by(host) > 0)


def killing(*, sidecar: bool = False, broker: bool = False, leader: bool = False) -> Fault:
    async def kill(cluster: FaultCluster, rng: Random) -> Disturbance:
        host = await victim(cluster, rng, leader=leader)
        began_s = monotonic()
        await host.kill(sidecar=sidecar, broker=broker)
        if sidecar:
            # Its broker serves until the lease ends, and its session lasts longer.
            await asyncio.sleep(SESSION_S + TICK_S)
        return now(f"kill of host {host.number}", began_s, host)

    return kill


def restarting(*, sidecar: bool = False, broker: bool = False) -> Fault:
    async def restart(cluster: FaultCluster, rng: Random) -> Disturbance:
        host = await victim(cluster, rng)
        began_s = monotonic()
        await host.kill(sidecar=sidecar, broker=broker)
        await cluster.restore()
        return now(f"restart on host {host.number}", began_s, host)

    return restart


def freezing(
    *, sidecar: bool = False, broker: bool = False, leader: bool = False, pause_s: float = PAUSE_S
) -> Fault:
    async def freeze(cluster: FaultCluster, rng: Random) -> Disturbance:
        host = await victim(cluster, rng, leader=leader)
        began_s = monotonic()
        host.send(signal.SIGSTOP, sidecar=sidecar, broker=broker)
        try:
            await asyncio.sleep(pause_s)
        finally:
            host.send(signal.SIGCONT, sidecar=sidecar, broker=broker)
        return now(f"freeze of host {host.number}", began_s, host)

    return freeze


def replacing(*, leader: bool = False) -> Fault:
    """Return a fault that freezes a sidecar, starts another for its broker, and thaws the first.

    So does a supervisor that takes a process that hangs for a dead one.
    """

    async def replace(cluster: FaultCluster, rng: Random) -> Disturbance:
        host = await victim(cluster, rng, leader=leader)
        former, former_url = host.sidecar, host.sidecar_url
        assert former is not None
        began_s = monotonic()
        host.send(signal.SIGSTOP, sidecar=True)
        try:
            (port,) = free_ports(1)
            host.sidecar_url = f"http://{host.place.address}:{port}"
            await cluster.start_sidecar(host)
            await cluster.until_ready(host)
        finally:
            os.killpg(former.process.pid, signal.SIGCONT)
        assert host.sidecar is not None
        if await _one_left((former, host.sidecar)) is former:
            # It woke after its session had ended, and registered again: the later one works.
            host.sidecar, host.sidecar_url = former, former_url
        return now(f"replacement on host {host.number}", began_s, host)

    return replace


async def _one_left(two: tuple[Child, Child]) -> Child:
    for child in two:
        child.ending = True
    endings = [asyncio.ensure_future(child.process.wait()) for child in two]
    await asyncio.wait(endings, timeout=DISPLACED_BOUND_S, return_when=asyncio.FIRST_COMPLETED)
    for ending in endings:
        ending.cancel()
    (left,), (ended,) = (
        [child for child in two if child.running is running] for running in (True, False)
    )
    assert ended.process.returncode == DISPLACED, ended.log_tail()
    left.ending = False
    return left


def cutting(*, silently: bool, leader: bool = False) -> Fault:
    async def cut(cluster: FaultCluster, rng: Random) -> Disturbance:
        host = await victim(cluster, rng, leader=leader)
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
        return now(f"cut of host {host.number}", began_s, host)

    return cut


async def lose_replies(cluster: FaultCluster, rng: Random) -> Disturbance:
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


async def kill_client(cluster: FaultCluster, rng: Random) -> Disturbance:
    """Kill a client in the middle of its messages; no bundle is any worse for it."""
    client = rng.choice(cluster.clients)
    began_s = monotonic()
    client.send(signal.SIGKILL)
    await client.process.wait()
    return replace(now(f"kill of {client.name}", began_s), within_s=0.0)


def together(*faults: Fault) -> Fault:
    """Return several faults at the same time; what they broke is due after the last mending."""

    async def all_of_them(cluster: FaultCluster, rng: Random) -> Disturbance:
        felt = await asyncio.gather(*(fault(cluster, rng) for fault in faults))
        hit = [one.brokers for one in felt]
        return Disturbance(
            what=" and ".join(one.what for one in felt),
            began_s=min(one.began_s for one in felt),
            healed_s=max(one.healed_s for one in felt),
            within_s=WITHIN_S,
            brokers=frozenset().union(*hit) if all(hit) else frozenset(),
        )

    return all_of_them


FAULTS: Mapping[str, Fault] = {
    "kill sidecar": killing(sidecar=True),
    "kill broker": killing(broker=True),
    "kill both": killing(sidecar=True, broker=True),
    "kill leader": killing(sidecar=True, broker=True, leader=True),
    "kill client": kill_client,
    "kill leader's sidecar": killing(sidecar=True, leader=True),
    "restart sidecar": restarting(sidecar=True),
    "restart broker": restarting(broker=True),
    "restart both": restarting(sidecar=True, broker=True),
    "freeze sidecar": freezing(sidecar=True),
    "freeze broker": freezing(broker=True),
    "freeze both": freezing(sidecar=True, broker=True),
    "freeze leader": freezing(sidecar=True, broker=True, leader=True),
    "freeze leader's sidecar": freezing(sidecar=True, leader=True),
    "replace frozen sidecar": replacing(),
    "replace leader's frozen sidecar": replacing(leader=True),
    "freeze both for a moment": freezing(sidecar=True, broker=True, pause_s=SESSION_S / 2),
    "freeze sidecar up to its session": freezing(sidecar=True, pause_s=SESSION_S + TICK_S / 2),
    "restart ZooKeeper": restart_zookeeper,
    "freeze ZooKeeper": freeze_zookeeper,
    "stop ZooKeeper's writes": stop_the_writes,
    "cut sidecar off": cutting(silently=False),
    "cut sidecar off silently": cutting(silently=True),
    "cut leader off silently": cutting(silently=True, leader=True),
    "lose replies": lose_replies,
    "kill leader as ZooKeeper restarts": together(
        killing(sidecar=True, broker=True, leader=True), restart_zookeeper
    ),
    "freeze leader's sidecar as ZooKeeper restarts": together(
        freezing(sidecar=True, leader=True), restart_zookeeper
    ),
    "lose a follower": losing("follower"),
    "lose ZooKeeper's leader": losing("leader"),
    "lose ZooKeeper's majority": lose_the_majority,
}
ENSEMBLE_FAULTS = ("lose a follower", "lose ZooKeeper's leader", "lose ZooKeeper's majority")
PROXY_FAULTS = (
    *("cut sidecar off", "cut sidecar off silently", "cut leader off silently", "lose replies"),
)
