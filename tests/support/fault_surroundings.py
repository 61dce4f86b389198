"""Where faults happen: three sorts of cluster, and which fault needs which."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from random import Random
from time import monotonic

from fault_cluster import BUILDS, HAND_OVER_S, FaultCluster, Place, build, fault_cluster
from faults import ENSEMBLE_FAULTS, FAULTS, PAUSE_S, PROXY_FAULTS, Fault, now, one_of, outage
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


SIZE = "16m"
BALLAST = "ballast"


def small_disk(folder: Path) -> Path:
    """Mount a file system in memory that is soon full. It goes with its namespace."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], check=True)
    return folder


def fill(disk: Path) -> None:
    """Leave room for nothing, not even in blocks that files have begun."""
    assert disk.is_mount(), f"{disk} is no file system of its own: a large disk is not filled"
    for file in [disk / BALLAST, *filter(Path.is_file, disk.iterdir())]:
        # In the block that a log ends in. Before a record's next line blanks are no matter.
        _write_until_full(file)


async def full_for_a_while(disk: Path) -> None:
    fill(disk)
    try:
        await asyncio.sleep(PAUSE_S)
    finally:
        (disk / BALLAST).unlink()


def _write_until_full(path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        for length in (4096, 1):
            try:
                while file.write(b" " * length):
                    pass
            except OSError:
                continue


async def fill_brokers_disk(cluster: FaultCluster, rng: Random) -> Disturbance:
    """Fill the disk that a broker records on: without a record it may take up nothing."""
    host = one_of(cluster.hosts, cluster, rng)
    assert host.place.broker_folder is not None
    began_s = monotonic()
    await full_for_a_while(host.place.broker_folder)
    return now(f"full disk of broker {host.number}", began_s, host)


async def fill_sidecars_disk(cluster: FaultCluster, rng: Random) -> Disturbance:
    """Fill the disk that a sidecar logs to; it needs none for its work, so nothing is due."""
    host = one_of(cluster.hosts, cluster, rng)
    assert host.place.sidecar_folder is not None
    began_s = monotonic()
    await full_for_a_while(host.place.sidecar_folder)
    return replace(now(f"full disk of sidecar {host.number}", began_s, host), within_s=0.0)


async def fill_zookeepers_disk(cluster: FaultCluster, _rng: Random) -> Disturbance:
    """Fill the disk that holds ZooKeeper's log; make room and start it again later."""
    (server,) = cluster.servers.members
    began_s = monotonic()
    await full_for_a_while(server.folder)
    cluster.servers.stop()
    await cluster.servers.start()
    return outage("full disk of ZooKeeper", began_s)


EVERYWHERE = "0.0.0.0"  # noqa: S104 - within a namespace that has no link to the outside
HOW_TO_BE_APART = (
    "needs namespaces of its own: run as root, or allow users their own "
    "(sysctl kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0), "
    "with util-linux and iproute2 installed"
)


class Surroundings(StrEnum):
    """What stands around three hosts and their clients.

    Where clocks jump, each sidecar's monotonic clock is days off its broker's, and its
    wall clock is set back and forth by up to an hour all the time; so is ZooKeeper's,
    where there is a C compiler.
    """

    PROXIED = "one ZooKeeper behind proxies"
    ENSEMBLE = "three ZooKeeper servers"
    APART = "real links and small disks"
    JUMPING = "clocks that jump"


FAULTS_APART: Mapping[str, Fault] = {
    "cut link": cut_link,
    "fill broker's disk": fill_brokers_disk,
    "fill sidecar's disk": fill_sidecars_disk,
    "fill ZooKeeper's disk": fill_zookeepers_disk,
}
ALL_FAULTS: Mapping[str, Fault] = {**FAULTS, **FAULTS_APART}


def possible_in(fault: str, *, apart: bool) -> Sequence[Surroundings]:
    """Return where a fault can happen, ``apart`` being one of these places or not."""
    if fault in FAULTS_APART:
        return (Surroundings.APART,)
    if fault in PROXY_FAULTS:
        return (Surroundings.PROXIED,)
    if fault in ENSEMBLE_FAULTS:
        return (Surroundings.ENSEMBLE,)
    return [place for place in Surroundings if apart or place is not Surroundings.APART]


@asynccontextmanager
async def surrounded(which: Surroundings, folder: Path) -> AsyncIterator[FaultCluster]:
    """Yield a running cluster; one apart needs a process in namespaces of its own."""
    if which is Surroundings.PROXIED:
        async with fault_cluster(folder, proxied=True) as cluster:
            yield cluster
    elif which is Surroundings.ENSEMBLE:
        async with fault_cluster(folder, servers=3) as cluster:
            yield cluster
    elif which is Surroundings.JUMPING:
        jumping = (Place(sidecar_environment=build("jumping_clocks")),) * 3
        within = _jumping_wall_clock(folder)
        async with fault_cluster(folder, places=jumping, zookeeper_environment=within) as cluster:
            yield cluster
    else:
        with ExitStack() as stack:
            places = (stack.enter_context(linked_host()), *[Place(address=OTHERS)] * 2)
            on_disks = [
                replace(
                    place,
                    broker_folder=small_disk(folder / f"disk-of-broker-{number}"),
                    sidecar_folder=small_disk(folder / f"disk-of-sidecar-{number}"),
                )
                for number, place in enumerate(places, 1)
            ]
            small_disk(folder / "zookeeper")
            async with fault_cluster(folder, places=on_disks, listen=EVERYWHERE) as cluster:
                yield cluster


def _jumping_wall_clock(folder: Path) -> Mapping[str, str]:
    """Return the environment of a process whose wall clock jumps; nothing without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return {}
    library = folder / "jumping_wall_clock.so"
    source = BUILDS / "jumping_wall_clock.c"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library)}


def going_apart() -> Sequence[str]:
    """Return the command that runs another in namespaces of its own; () if there is none here."""
    if not all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip", "mount")):
        return ()
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *as_root, "--net", "--mount"]
    trials = (
        ["ip", "link", "add", "one", "type", "veth", "peer", "name", "other"],
        ["mount", "-t", "tmpfs", "tmpfs", "/mnt"],
    )
    for trial in trials:
        if subprocess.run([*command, *trial], capture_output=True, check=False).returncode:
            return ()
    return command
