"""Real links between one host and the rest, which can be taken down. Needs a network namespace.

The host has a network of its own, with two links to ours: one to clients and other
hosts, one to ZooKeeper. The second is taken down, so that packets vanish without a word.
"""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import monotonic

from fault_cluster import HAND_OVER_S, FaultCluster
from fault_hosts import Place
from fault_outcomes import PAUSE_S, now
from zookeeper_servers import mortal

from tests.testbed.checker.availability import Disturbance

OTHERS, ONE = "10.213.1.1", "10.213.1.2"
ZOOKEEPER, ONE_TO_ZOOKEEPER = "10.213.2.1", "10.213.2.2"
SERVES_SOMETHING_BOUND_S = 20.0
ENTER_SCRIPT = Path(__file__).with_name("enter_network.py")


@contextmanager
def linked_host() -> Iterator[Place]:
    """Yield where a host runs that has links; they go with its network at the end."""
    ours = _network_of("self")
    holder = subprocess.Popen(
        ["unshare", "--net", "sleep", "infinity"],
        preexec_fn=mortal,  # noqa: PLW1509 - it asks for a signal and takes no lock
    )
    try:
        while _network_of(holder.pid) == ours:
            assert holder.poll() is None, "unshare --net did not work"
        _lay_cables(holder.pid)
        enter = (str(ENTER_SCRIPT), str(holder.pid))
        yield Place(address=ONE, zookeeper=ZOOKEEPER, enter=enter)
    finally:
        holder.kill()
        holder.wait()


async def cut_link(cluster: FaultCluster, _rng: Random) -> Disturbance:
    host = cluster.hosts[0]
    async with asyncio.timeout(SERVES_SOMETHING_BOUND_S):
        while not cluster.owned_by(host):
            await cluster.move_every_bundle()
            await asyncio.sleep(HAND_OVER_S)
    began_s = monotonic()
    _shell("ip link set keeper down")
    try:
        await asyncio.sleep(PAUSE_S)
    finally:
        _shell("ip link set keeper up")
    return now(f"cut link of host {host.number}", began_s, host)


def raise_loopback() -> None:
    _shell("ip link set lo up")


def _shell(command: str) -> None:
    subprocess.run(command.split(), check=True)


def _network_of(pid: int | str) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def _lay_cables(holder: int) -> None:
    within = f"nsenter --net=/proc/{holder}/ns/net"
    _shell(f"{within} ip link set lo up")
    ends = (("clients", OTHERS, ONE), ("keeper", ZOOKEEPER, ONE_TO_ZOOKEEPER))
    for name, ours, theirs in ends:
        _shell(f"ip link add {name} type veth peer name {name} netns {holder}")
        _shell(f"ip address add {ours}/24 dev {name}")
        _shell(f"ip link set {name} up")
        _shell(f"{within} ip address add {theirs}/24 dev {name}")
        _shell(f"{within} ip link set {name} up")
