"""Hosts with a network and an /etc of their own, joined by a switch; nothing leaves them.

Each host is a process that keeps a network namespace and a mount namespace alive. Commands run in
both, so that names, addresses and /etc are those of the host. Everything goes with the processes.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from zookeeper_servers import mortal

NETWORK: Final = "10.214.0"
STARTS_WITHIN_S: Final = 10.0


class NoNetworkHosts(Exception):
    """This machine cannot make networks; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class NetworkHost:
    """One host: its name and address, the process that keeps it, and where commands run."""

    name: str
    address: str
    holder: int
    folder: Path

    def enter(self, command: Sequence[str]) -> list[str]:
        """Return a command line that runs ``command`` on this host, in its folder.

        Entering a mount namespace leads to its root folder, which is this machine's.
        """
        inside = ["env", f"--chdir={self.folder}", *command]
        return ["nsenter", f"--target={self.holder}", "--net", "--mount", *inside]


@dataclass(slots=True)
class NetworkHosts:
    hosts: Mapping[str, NetworkHost]
    folder: Path
    environment: Mapping[str, str]
    started: list[tuple[str, subprocess.Popen[bytes], Path]] = field(default_factory=list)

    def run(self, host: str, script: str, *, within_s: float = 60.0) -> str:
        finished = subprocess.run(
            self.hosts[host].enter(["sh", "-euc", script]),
            env=dict(self.environment),
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )
        said = f"on {host}: {script}\n{finished.stdout}\n{finished.stderr}"
        assert finished.returncode == 0, said
        return finished.stdout

    def start(self, host: str, script: str) -> Path:
        """Start a shell command that keeps running on a host; return where its output goes."""
        log = self.folder / f"{host}-{len(self.started)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                self.hosts[host].enter(["sh", "-euc", f"exec {script.strip()}"]),
                env=dict(self.environment),
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=mortal,  # noqa: PLW1509 - it asks for a signal and takes no lock
            )
        self.started.append((script, process, log))
        return log

    def check_running(self) -> None:
        """Fail if a command that was to keep running has ended; show what it printed."""
        for script, process, log in self.started:
            if process.poll() is not None:
                said = log.read_text(encoding="utf-8", errors="replace")[-4000:]
                raise AssertionError(f"{script!r} ended with {process.returncode}:\n{said}")

    def stop(self) -> None:
        for _, process, _ in reversed(self.started):
            process.terminate()
        for _, process, _ in self.started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.started.clear()


@contextmanager
def network_hosts(
    names: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> Iterator[NetworkHosts]:
    """Yield hosts of these names, which reach each other by name; the first keeps the switch.

    Raises:
        NoNetworkHosts: this user or this machine may not make networks.
    """
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            raise NoNetworkHosts(f"needs {tool}: install util-linux and iproute2")
    with ExitStack() as holders:
        hosts = {
            name: NetworkHost(
                name,
                f"{NETWORK}.{number}",
                holders.enter_context(_holder(folder / name)),
                folder,
            )
            for number, name in enumerate(names, 1)
        }
        switch, *others = hosts.values()
        _lay_switch(switch, others)
        lines = [
            "127.0.0.1 localhost",
            "::1 localhost",
            *(f"{host.address} {host.name}" for host in hosts.values()),
        ]
        made = NetworkHosts(hosts, folder, environment)
        for host in hosts:
            made.run(host, "cat > /etc/hosts <<'END'\n" + "\n".join(lines) + "\nEND")
        try:
            yield made
        finally:
            made.stop()


@contextmanager
def _holder(folder: Path) -> Iterator[int]:
    """Yield the process that keeps a host: a network, and an /etc that can be written to."""
    upper, work = folder / "etc", folder / "work"
    for each in (upper, work):
        each.mkdir(parents=True)
    ready = folder / "ready"
    layers = f"lowerdir=/etc,upperdir={upper},workdir={work}"
    # The kernel lays an overlay on no other: a test folder on one gives an empty /etc of its own.
    script = (
        f"mount -t overlay overlay -o {layers} /etc || mount -t tmpfs tmpfs /etc\n"
        f"touch {ready}\nexec sleep infinity"
    )
    process = subprocess.Popen(
        ["unshare", "--net", "--mount", "--propagation=private", "sh", "-ec", script],
        stderr=subprocess.PIPE,
        preexec_fn=mortal,  # noqa: PLW1509 - it asks for a signal and takes no lock
    )
    assert process.stderr is not None
    try:
        deadline_s = time.monotonic() + STARTS_WITHIN_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline_s:
                process.kill()
                why = process.stderr.read().decode().strip() or "unshare did not answer"
                raise NoNetworkHosts(f"needs the right to make networks (root): {why}")
            time.sleep(0.02)
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def _lay_switch(switch: NetworkHost, others: Sequence[NetworkHost]) -> None:
    """Join all hosts: the first has the switch, each other one a cable to it."""

    def on(host: NetworkHost, command: str) -> None:
        subprocess.run(
            ["nsenter", f"--target={host.holder}", "--net", *command.split()], check=True
        )

    on(switch, "ip link add switch type bridge")
    on(switch, f"ip address add {switch.address}/24 dev switch")
    for link in ("lo", "switch"):
        on(switch, f"ip link set {link} up")
    for number, host in enumerate(others):
        cable = f"cable{number}"
        on(switch, f"ip link add {cable} type veth peer name eth0 netns {host.holder}")
        on(switch, f"ip link set {cable} master switch up")
        on(host, f"ip address add {host.address}/24 dev eth0")
        for link in ("lo", "eth0"):
            on(host, f"ip link set {link} up")
