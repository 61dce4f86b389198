"""Cut a real link between one host and ZooKeeper; needs a network namespace of its own.

``unshare --net python cut_network.py FOLDER``. One host has a network of its own, with two
links: one to clients and other hosts, one to ZooKeeper. The second is taken down, so
that packets vanish without a word, and up again. The outcome is printed as JSON.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from random import Random
from time import monotonic

SUPPORT = Path(__file__).parents[1] / "support"
sys.path.insert(0, str(SUPPORT))

from fault_cluster import FaultCluster, fault_cluster  # noqa: E402 - found by the line above
from fault_hosts import Place  # noqa: E402 - the same
from fault_outcomes import PAUSE_S, drawn_from, now, observe  # noqa: E402 - the same

from loadmanager.checker.availability import Disturbance  # noqa: E402 - the same

EVERYWHERE = "0.0.0.0"  # noqa: S104 - within a namespace that has no link to the outside
OTHERS, ONE = "10.213.1.1", "10.213.1.2"
ZOOKEEPER, ONE_TO_ZOOKEEPER = "10.213.2.1", "10.213.2.2"


def shell(command: str) -> None:
    """Run a command of plain words."""
    subprocess.run(command.split(), check=True)


def network_of(pid: int | str) -> str:
    """Return which network a process is in."""
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def lay_cables(holder: int) -> None:
    """Give the holder's network two links to ours."""
    within = f"nsenter --net=/proc/{holder}/ns/net"
    shell("ip link set lo up")
    shell(f"{within} ip link set lo up")
    ends = (("clients", OTHERS, ONE), ("keeper", ZOOKEEPER, ONE_TO_ZOOKEEPER))
    for name, ours, theirs in ends:
        shell(f"ip link add {name} type veth peer name {name} netns {holder}")
        shell(f"ip address add {ours}/24 dev {name}")
        shell(f"ip link set {name} up")
        shell(f"{within} ip address add {theirs}/24 dev {name}")
        shell(f"{within} ip link set {name} up")


async def cut(cluster: FaultCluster, _rng: Random) -> Disturbance:
    """Take the link to ZooKeeper down for longer than a session lives."""
    began_s = monotonic()
    shell("ip link set keeper down")
    try:
        await asyncio.sleep(PAUSE_S)
    finally:
        shell("ip link set keeper up")
    return now(f"cut link of host {cluster.hosts[0].number}", began_s)


async def run(folder: Path, holder: int) -> dict[str, object]:
    """Run the cluster, cut the link, and return what came of it."""
    enter = (str(SUPPORT / "enter_network.py"), str(holder))
    apart = Place(address=ONE, zookeeper=ZOOKEEPER, enter=enter)
    places = (apart, Place(address=OTHERS), Place(address=OTHERS))
    async with fault_cluster(folder, places=places, listen=EVERYWHERE) as cluster:
        served = cluster.owned_by(cluster.hosts[0])
        outcome = await observe(cluster, "cut link", cut, drawn_from(1))
    return {
        "violations": list(outcome.verdict.violations),
        "recovery_s": outcome.recovery_s,
        "served_before": served,
    }


def main() -> None:
    """Make the other network, run, and print the outcome."""
    ours = network_of("self")
    holder = subprocess.Popen(["unshare", "--net", "sleep", "600"])
    try:
        while network_of(holder.pid) == ours:
            assert holder.poll() is None
        lay_cables(holder.pid)
        outcome = asyncio.run(run(Path(sys.argv[1]), holder.pid))
    finally:
        holder.kill()
        holder.wait()
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
