"""Small disks for those that write, and faults that fill them. Needs a mount namespace."""

import asyncio
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from time import monotonic

from fault_cluster import FaultCluster
from fault_hosts import Host
from fault_outcomes import PAUSE_S, now, outage

from tests.testbed.checker.availability import Disturbance

SIZE = "16m"


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A file system of its own, in memory, that is soon full. It goes with its namespace."""

    folder: Path

    @classmethod
    def mounted_at(cls, folder: Path) -> "SmallDisk":
        folder.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], check=True)
        return cls(folder)

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"

    def fill(self) -> None:
        """Leave room for nothing, not even in blocks that files have begun.

        Raises:
            AssertionError: the folder lies on a large disk, which is not to be filled.
        """
        assert self.folder.is_mount(), f"{self.folder} is no file system of its own"
        _write_until_full(self._ballast, bytes(4096))
        for file in self.folder.iterdir():
            if file.is_file() and file != self._ballast:
                # In the block that a log ends in. Before a record's next line it is no matter.
                _write_until_full(file, b" " * 4096)

    def clear(self) -> None:
        self._ballast.unlink()


def _write_until_full(path: Path, block: bytes) -> None:
    with path.open("ab", buffering=0) as file:
        for length in (len(block), 1):
            try:
                while file.write(block[:length]):
                    pass
            except OSError:
                continue


def _one_with(cluster: FaultCluster, rng: Random) -> Host:
    """Return a host that serves something, if any of them does; leaders count, too."""
    hosts = list(cluster.hosts)
    rng.shuffle(hosts)
    return max(hosts, key=lambda host: cluster.owned_by(host) > 0)


async def fill_brokers_disk(cluster: FaultCluster, rng: Random) -> Disturbance:
    """Fill the disk that a broker records on: without a record it may take up nothing."""
    host = _one_with(cluster, rng)
    assert host.place.broker_folder is not None
    began_s = monotonic()
    await _full_for_a_while(SmallDisk(host.place.broker_folder))
    return now(f"full disk of broker {host.number}", began_s, host)


async def fill_sidecars_disk(cluster: FaultCluster, rng: Random) -> Disturbance:
    """Fill the disk that a sidecar logs to; it needs none for its work, so nothing is due."""
    host = _one_with(cluster, rng)
    assert host.place.sidecar_folder is not None
    began_s = monotonic()
    await _full_for_a_while(SmallDisk(host.place.sidecar_folder))
    return replace(now(f"full disk of sidecar {host.number}", began_s, host), within_s=0.0)


async def fill_zookeepers_disk(cluster: FaultCluster, _rng: Random) -> Disturbance:
    """Fill the disk that holds ZooKeeper's log; make room and start it again later."""
    (server,) = cluster.servers.members
    began_s = monotonic()
    await _full_for_a_while(SmallDisk(server.folder))
    cluster.servers.stop()
    await cluster.servers.start()
    return outage("full disk of ZooKeeper", began_s)


async def _full_for_a_while(disk: SmallDisk) -> None:
    disk.fill()
    try:
        await asyncio.sleep(PAUSE_S)
    finally:
        disk.clear()
