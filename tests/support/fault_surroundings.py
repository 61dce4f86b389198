"""Where faults happen: three sorts of cluster, and which fault needs which."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from fault_cluster import FaultCluster, fault_cluster
from fault_disks import SmallDisk, fill_brokers_disk, fill_sidecars_disk, fill_zookeepers_disk
from fault_hosts import BUILDS, Place, build
from fault_links import OTHERS, cut_link, linked_host
from fault_outcomes import Fault
from faults import ENSEMBLE_FAULTS, FAULTS, PROXY_FAULTS

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
            on_disks = [_on_small_disks(place, folder, n) for n, place in enumerate(places, 1)]
            SmallDisk.mounted_at(folder / "zookeeper")
            async with fault_cluster(folder, places=on_disks, listen=EVERYWHERE) as cluster:
                yield cluster


def _on_small_disks(place: Place, folder: Path, number: int) -> Place:
    disks = [
        SmallDisk.mounted_at(folder / f"disk-of-{of}-{number}") for of in ("broker", "sidecar")
    ]
    return replace(place, broker_folder=disks[0].folder, sidecar_folder=disks[1].folder)


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
