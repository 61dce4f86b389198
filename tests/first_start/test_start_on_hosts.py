"""docs/index.md, word for word, on one, two and three hosts with networks of their own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from network_hosts import NetworkHosts, NoNetworkHosts, network_hosts
from page_commands import Fence, fences

from loadmanager.adapters.zookeeper.java import EmbeddedZooKeeperError, find_java

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "index.md"
ZOOKEEPER, CLIENT = "zk-1.example.org", "client.example.org"
STEP_S = 90.0
"""No step of the page may take longer; the slowest is the first readiness."""

SERVED_S = 30.0


def broker(number: int) -> str:
    return f"broker-{number}.example.org"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program folder of a fresh environment, filled by the page's own command.

    The hosts have no way to a package index, and they share this machine's files.
    """
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    for fence in fences(PAGE):
        if fence.options.get("on") == "clone":
            subprocess.run(["sh", "-euc", fence.text], cwd=PROJECT, env=environment, check=True)
    assert (folder / "bin" / "loadmanager").exists()
    return folder / "bin"


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


class Reader:
    """Does what the page says, on all hosts it says it of, and takes down how long it took."""

    def __init__(self, hosts: NetworkHosts, count: int) -> None:
        self._hosts = hosts
        self._count = count
        self.took_s: list[tuple[str, float]] = []
        self.said: dict[tuple[str, str], str] = {}

    def do(self, fence: Fence) -> None:
        """Write the file, or run the commands, of one fenced block."""
        began_s = time.monotonic()
        if path := fence.options.get("file"):
            for host, text in self._each("each-broker", fence.text):
                self._hosts.run(host, f"cat > {path} <<'END'\n{text}END")
            name = path
        else:
            for host, text in self._each(fence.options["on"], fence.text):
                if fence.options.get("runs") == "until-stopped":
                    self._hosts.start(host, text)
                else:
                    self.said[host, fence.text] = self._hosts.run(host, text, within_s=STEP_S)
            name = fence.text.splitlines()[0]
        self._hosts.check_running()
        self.took_s.append((name, time.monotonic() - began_s))

    def _each(self, where: str, text: str) -> Iterator[tuple[str, str]]:
        if where != "each-broker":
            yield (
                (CLIENT if where == "client" else broker(int(where.removeprefix("broker-")))),
                text,
            )
            return
        for number in range(1, self._count + 1):
            yield broker(number), text.replace("broker-1", f"broker-{number}")


@pytest.fixture
def reader(hosts: NetworkHosts, count: int) -> Reader:
    """Return a reader who has done all that the page says."""
    found = Reader(hosts, count)
    for fence in fences(PAGE):
        if fence.options and fence.options.get("on") != "clone":
            found.do(fence)
    for step, took_s in found.took_s:
        print(f"{count} hosts, {took_s:5.1f} s: {step}")  # noqa: T201 - shown by pytest -rP
    return found


def test_the_page_leads_to_a_cluster_that_answers_everywhere_and_nothing_to_strangers(
    reader: Reader, hosts: NetworkHosts, count: int
) -> None:
    assert len(reader.took_s) >= 8
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
