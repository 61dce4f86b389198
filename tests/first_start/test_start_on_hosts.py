"""docs/index.md, word for word, on one, two and three hosts with networks of their own."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from zookeeper_servers import mortal

from loadmanager.adapters.zookeeper.embedded import EmbeddedZooKeeperError, find_java

_FENCE = re.compile(r"^<!-- (\w+=[^\n]*) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def fences(page: Path) -> Iterator[tuple[dict[str, str], str]]:
    """Yield what the comment before each fenced block says, and its text."""
    for words, text in _FENCE.findall(page.read_text(encoding="utf-8")):
        yield dict(word.split("=", 1) for word in words.split()), text


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
                name, f"{NETWORK}.{number}", holders.enter_context(_holder(folder / name)), folder
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


pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
PAGE = Path(__file__).parents[2] / "docs" / "index.md"
ZOOKEEPER, CLIENT = "zk-1.example.org", "client.example.org"
STEP_S = 90.0
"""No step of the page may take longer; the slowest is the first readiness."""

SERVED_S = 30.0


def broker(number: int) -> str:
    return f"broker-{number}.example.org"


@pytest.fixture(
    params=[
        pytest.param(1, marks=pytest.mark.thorough),
        2,
        pytest.param(3, marks=pytest.mark.thorough),
    ]
)
def count(request: pytest.FixtureRequest) -> int:
    """Return the number of brokers."""
    return int(request.param)


@pytest.fixture
def hosts(count: int, programs: Path, tmp_path: Path) -> Iterator[NetworkHosts]:
    """Yield a host for ZooKeeper, one for each broker, and one that has neither."""
    try:
        find_java()
    except EmbeddedZooKeeperError as error:
        pytest.skip(str(error))
    brokers = [broker(number) for number in range(1, count + 1)]
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("LOADMANAGER_")},
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    try:
        with network_hosts([ZOOKEEPER, *brokers, CLIENT], tmp_path, environment) as made:
            made.start(
                ZOOKEEPER,
                f"{sys.executable} -m loadmanager zookeeper --host 0.0.0.0 --port 2181 "
                "--tick-ms 500",
            )
            made.run(ZOOKEEPER, _until("echo > /dev/tcp/localhost/2181"))
            yield made
    except NoNetworkHosts as error:
        pytest.skip(str(error))


def _until(command: str) -> str:
    return (
        f"for _ in $(seq 300); do bash -c '{command}' 2>/dev/null && exit; sleep 0.1; done; exit 1"
    )


def each(where: str, text: str, count: int) -> Iterator[tuple[str, str]]:
    """Yield the hosts that the page says something of, with what it says there."""
    if where == "each-broker":
        for number in range(1, count + 1):
            yield broker(number), text.replace("broker-1", f"broker-{number}")
    else:
        yield CLIENT if where == "client" else broker(int(where.removeprefix("broker-"))), text


def do(hosts: NetworkHosts, count: int, options: Mapping[str, str], fenced: str) -> None:
    """Write the file, or run the commands, of one fenced block."""
    began_s = time.monotonic()
    path = options.get("file")
    for host, text in each("each-broker" if path else options["on"], fenced, count):
        if path:
            hosts.run(host, f"cat > {path} <<'END'\n{text}END")
        elif options.get("runs") == "until-stopped":
            hosts.start(host, text)
        else:
            hosts.run(host, text, within_s=STEP_S)
    hosts.check_running()
    step, took_s = path or fenced.splitlines()[0], time.monotonic() - began_s
    print(f"{count} hosts, {took_s:5.1f} s: {step}")  # noqa: T201 - shown by pytest -rP


def test_the_page_leads_to_a_cluster_that_answers_everywhere_and_nothing_to_strangers(
    hosts: NetworkHosts, count: int
) -> None:
    steps = [(options, fenced) for options, fenced in fences(PAGE) if options.get("on") != "clone"]
    assert len(steps) >= 8
    for options, fenced in steps:
        do(hosts, count, options, fenced)
    brokers = [broker(number) for number in range(1, count + 1)]
    listed = hosts.run(broker(1), "loadmanager brokers")
    assert [name for name in brokers if f"{name}:8080" not in listed] == []

    path = "lookup/v2/topic/persistent/public/orders"
    lookup = f"curl -fsS --retry 30 --retry-delay 1 http://{{}}:7750/{path}/topic-{{}}"
    for topic in range(12):
        owners = {
            json.loads(hosts.run(CLIENT, lookup.format(at, topic), within_s=SERVED_S))["httpUrl"]
            for at in brokers
        }
        assert len(owners) == 1, "every sidecar names the same owner"
        assert owners <= {f"http://{name}:8080" for name in brokers}

    status = "curl -s -o /dev/null -w '%{{http_code}}' {}"
    for name in brokers:
        for path in ("/metrics", "/admin/v2/brokers/loadmanager", "/admin/v2/namespaces/public"):
            assert hosts.run(CLIENT, status.format(f"http://{name}:7750{path}")) == "401"
        assert hosts.run(CLIENT, status.format(f"http://{name}:7750/healthz")) == "200"
    said = hosts.run(CLIENT, f"curl -s http://{broker(1)}:7750/metrics")
    assert "loadmanager token" in said
    for name in brokers:
        check_what_pages_may(hosts, name)


def check_what_pages_may(hosts: NetworkHosts, host: str) -> None:
    """Check what pages of another site come to in a browser on a broker's host."""
    asked = "curl -s -i --resolve page.example:7750:127.0.0.1 {} http://{}:7750{}"
    lookup = "/lookup/v2/topic/persistent/public/orders/eu"
    namespaces = "/admin/v2/namespaces/public"
    for path in (lookup, namespaces, "/metrics"):
        said = hosts.run(host, asked.format("", "page.example", path))
        assert said.startswith("HTTP/1.1 403 "), said

    foreign = ("Origin: http://page.example", "Origin: null", "Sec-Fetch-Site: cross-site")
    for header in foreign:
        change = f"-X PUT -H '{header}'"
        said = hosts.run(host, asked.format(change, "localhost", f"{namespaces}/of-a-page"))
        assert said.startswith("HTTP/1.1 403 "), said
        read = hosts.run(host, asked.format(f"-H '{header}'", "localhost", namespaces))
        assert "of-a-page" not in read
        assert "public/orders" in read, "a browser gets it, and keeps it from the page"
        assert "access-control" not in read.lower()
        preflight = f"-X OPTIONS -H '{header}' -H 'Access-Control-Request-Method: PUT'"
        said = hosts.run(host, asked.format(preflight, "localhost", namespaces))
        assert "access-control" not in said.lower()
