import asyncio
import ctypes
import os
import resource
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from loadmanager.adapters.zookeeper.embedded import (
    find_java,
    four_letter_word,
    zookeeper_class_path,
)
from loadmanager.demo.cluster import PR_SET_PDEATHSIG

LOOPBACK = "127.0.0.1"
START_BOUND_S = 60.0
POLL_S = 0.05
PORTS_PER_MEMBER = 3


@dataclass(slots=True)
class Server:
    """One server process. ``settings`` are lines of ``zoo.cfg`` beyond the usual ones.

    ``environment`` is set besides our own.
    """

    number: int
    port: int
    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    host: str = LOOPBACK
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    def launch(self) -> None:
        """Start it, on the data it had; it is of use when `mode` says something."""
        assert not self.running
        self.data_dir.mkdir(parents=True, exist_ok=True)
        (self.data_dir / "myid").write_text(f"{self.number}\n")
        settings_file = self.folder / "zoo.cfg"
        settings = {
            "dataDir": str(self.data_dir),
            "clientPort": str(self.port),
            "clientPortAddress": self.host,
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
            "preAllocSize": "64",
            # A killed process loses nothing that the kernel has; only a power cut would.
            "forceSync": "no",
            **self.settings,
        }
        settings_file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = (
            *(str(_java()), "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-Djava.awt.headless=true", "-Dlog4j2.level=WARN"),
            *("-classpath", zookeeper_class_path()),
            *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(settings_file)),
        )
        with (self.folder / "zookeeper.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environment},
                preexec_fn=mortal,  # noqa: PLW1509 - it asks for a signal and takes no lock
            )

    async def mode(self) -> str:
        """Return ``standalone``, ``leader`` or ``follower``; "" if it serves nobody now."""
        told = await asyncio.to_thread(four_letter_word, LOOPBACK, self.port, "srvr")
        lines = (line for line in told.splitlines() if line.startswith("Mode: "))
        return next(lines, "Mode: ").removeprefix("Mode: ")

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()

    def stop_writes(self) -> None:
        assert self.process is not None
        _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (1024, hard))

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)


@dataclass(slots=True)
class Servers:
    members: Sequence[Server]

    @property
    def hosts(self) -> str:
        return self.hosts_seen_from(LOOPBACK)

    def hosts_seen_from(self, address: str) -> str:
        """Return what clients are told that reach all servers at ``address``."""
        return ",".join(f"{address}:{one.port}" for one in self.members)

    async def start(self) -> None:
        for one in self.members:
            if not one.running:
                # On this very thread: the server dies with the thread that started it.
                one.launch()
        await self.until_serving(self.members)

    async def until_serving(self, members: Sequence[Server]) -> None:
        async with asyncio.timeout(START_BOUND_S):
            for one in members:
                while not await one.mode():
                    assert one.running, (one.folder / "zookeeper.log").read_text()[-2000:]
                    await asyncio.sleep(POLL_S)

    async def in_mode(self, mode: str) -> Server:
        for one in self.members:
            if one.running and await one.mode() == mode:
                return one
        raise AssertionError(f"no server is {mode}")

    def stop(self) -> None:
        for one in self.members:
            if one.running:
                one.kill()


def standalone(folder: Path, tick_ms: int, port: int, *, host: str = LOOPBACK) -> Servers:
    return Servers((Server(1, port, folder, {"tickTime": str(tick_ms)}, host),))


def ensemble(folder: Path, tick_ms: int, ports: Sequence[int]) -> Servers:
    """Return servers that elect a leader among themselves; each takes three of the ports."""
    settings = {"tickTime": str(tick_ms), "initLimit": "30", "syncLimit": "10"}
    triples = [*zip(*(iter(ports),) * PORTS_PER_MEMBER, strict=True)]
    for number, (_, of_peers, of_election) in enumerate(triples, start=1):
        settings[f"server.{number}"] = f"{LOOPBACK}:{of_peers}:{of_election}"
    members = [
        Server(number, port, folder / f"zookeeper-{number}", settings)
        for number, (port, _, _) in enumerate(triples, start=1)
    ]
    return Servers(members)


@cache
def _java() -> Path:
    return find_java()


def mortal() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
