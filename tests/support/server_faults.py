"""Faults of ZooKeeper's servers."""

import asyncio
import signal
from random import Random
from time import monotonic

from fault_cluster import FaultCluster
from fault_hosts import WITHIN_S
from fault_outcomes import PAUSE_S, now, outage
from zookeeper_servers import Server

from tests.testbed.checker.availability import Disturbance


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
