"""A real Pulsar cluster on loopback: ZooKeeper, one bookie and brokers, each a process of its own.

Jars come from Maven's public repository, once for each version, into the user's cache folder.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import Request, urlopen

from own_cgroups import own_cgroups
from zookeeper_servers import mortal

from loadmanager.adapters.zookeeper.embedded import EmbeddedZooKeeper
from loadmanager.core.hashing import position
from loadmanager.core.ids import parse_bundle, parse_full_topic, range_of
from loadmanager.demo.children import free_ports
from loadmanager.java import NoJava, find_java

POM: Final = Path(__file__).parents[1] / "real_pulsar" / "pom.xml"
CLUSTER: Final = "trial"
MANAGERS: Final = {
    "modular": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
    "extensible": "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl",
}
READY_S: Final = 180.0
OLDEST_JAVA: Final = 17
_GOAL: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_OPENED: Final = (
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.base/sun.net",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
_SMALL_BROKER: Final[Mapping[str, object]] = {
    "managedLedgerDefaultEnsembleSize": 1,
    "managedLedgerDefaultWriteQuorum": 1,
    "managedLedgerDefaultAckQuorum": 1,
    "managedLedgerCacheSizeMB": 32,
    "numIOThreads": 2,
    "numHttpServerThreads": 8,
    "numOrderedExecutorThreads": 2,
    "numExecutorThreadPoolSize": 2,
    "bookkeeperNumberOfChannelsPerBookie": 2,
    "webSocketServiceEnabled": "false",
    "functionsWorkerEnabled": "false",
    "loadBalancerOverrideBrokerNicSpeedGbps": 1,
    "brokerDeleteInactiveTopicsEnabled": "false",
    "loadBalancerSheddingEnabled": "false",
    "metadataStoreSessionTimeoutMillis": 5000,
}


class NoPulsar(Exception):
    """This machine cannot run Pulsar; the message says what is missing and how to get it."""


def jars_of(version: str) -> Path:
    """Return the folder with all jars of a version, fetched if they are not there yet.

    Raises:
        NoPulsar: Maven or a fitting Java is missing, or the jars cannot be had.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "loadmanager-tests" / f"pulsar-{version}"
    if (folder / "complete").exists():
        return folder
    if shutil.which("mvn") is None:
        raise NoPulsar("needs Maven: apt-get install maven, or brew install maven")
    java()
    fetch = ["mvn", "-q", "-B", "-f", str(POM), _GOAL, "-DincludeScope=runtime"]
    fetch += [f"-Dpulsar.version={version}", f"-DoutputDirectory={folder}"]
    done = subprocess.run(fetch, capture_output=True, text=True, check=False, cwd=POM.parent)
    if done.returncode != 0:
        raise NoPulsar(f"Pulsar {version} cannot be fetched with Maven: {done.stdout[-2000:]}")
    (folder / "complete").touch()
    return folder


def java() -> Path:
    """Return a Java that runs Pulsar.

    Raises:
        NoPulsar: there is none.
    """

    def unfit(candidate: Path) -> str | None:
        # A runtime that was cut down to what ZooKeeper needs has not all of Pulsar's modules.
        said = subprocess.run(
            [candidate, "--list-modules"], capture_output=True, text=True, check=False
        ).stdout
        modules = {line.partition("@")[0] for line in said.split()}
        missing = {"jdk.management", "java.management", "jdk.unsupported", "java.naming"} - modules
        return f"lacks {', '.join(sorted(missing))}" if missing else None

    try:
        return find_java(f"install Java {OLDEST_JAVA} or newer, such as openjdk-17-jre", unfit)
    except NoJava as error:
        raise NoPulsar(f"needs a whole Java: {error}") from None


@dataclass(slots=True)
class RealPulsar:
    """A running cluster; ``brokers`` are ``host:port`` of their web services."""

    version: str
    manager: str
    zookeeper: str
    brokers: list[str] = field(default_factory=list)
    binary_ports: list[int] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The web service of the first broker."""
        return f"http://{self.brokers[0]}"

    @property
    def service_url(self) -> str:
        """Where Pulsar's clients connect."""
        return "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in self.binary_ports)

    def put(self, path: str, body: str = "", method: str = "PUT") -> int:
        """Ask the first broker to change something, at whatever broker that leads to."""
        return _ask(f"{self.url}{path}", method, body)

    def json(self, path: str, broker: int = 0) -> Any:
        """Return what a broker answers."""
        with urlopen(f"http://{self.brokers[broker]}{path}", timeout=60) as reply:
            return json.loads(reply.read())

    def create_namespace(self, name: str, bundles: int) -> None:
        """Create a namespace; it may be there already."""
        body = f'{{"bundles": {{"numBundles": {bundles}}}, "replication_clusters": ["{CLUSTER}"]}}'
        assert self.put(f"/admin/v2/namespaces/{name}", body) in {204, 409}

    def owned(self, broker: int) -> set[str]:
        """Return the bundles that a broker serves."""
        name = self.brokers[broker]
        return set(self.json(f"/admin/v2/brokers/{CLUSTER}/{name}/ownedNamespaces", broker))

    def gather(self, namespace: str, topics: Iterable[str], limit_s: float = 60) -> None:
        """Let the first broker serve all bundles of a namespace that any broker serves."""
        target, deadline_s = self.brokers[0], time.monotonic() + limit_s
        while True:
            away = {
                bundle
                for number in range(1, len(self.brokers))
                for bundle in self.owned(number)
                if bundle.startswith(f"{namespace}/")
            }
            if not away:
                return
            assert time.monotonic() < deadline_s, f"still elsewhere: {sorted(away)}"
            for bundle in away:
                self.put(f"/admin/v2/namespaces/{bundle}/unload?destinationBroker={target}")
                # What leads first to the target is served there.
                for topic in topics if self.manager == "modular" else ():
                    path = topic.replace("://", "/")
                    if lies_in(topic, bundle):
                        with suppress(URLError):
                            self.json(f"/lookup/v2/topic/{path}?authoritative=true")
            time.sleep(0.5)


def lies_in(topic: str, bundle: str) -> bool:
    """Return whether a bundle of the topic's own namespace holds it."""
    lower, upper = range_of(parse_bundle(bundle))
    return lower <= position(parse_full_topic(topic), "crc32") < upper


def _ask(url: str, method: str, body: str, redirects: int = 5) -> int:
    request = Request(  # noqa: S310 - loopback
        url, data=body.encode(), method=method, headers={"Content-Type": "application/json"}
    )
    try:
        with urlopen(request, timeout=60) as reply:  # noqa: S310 - loopback
            return int(reply.status)
    except URLError as error:
        # urllib sends only questions on to where a redirect leads.
        location = getattr(error, "headers", {}).get("Location")
        if location and redirects:
            return _ask(location, method, body, redirects - 1)
        status = getattr(error, "code", None)
        if status is None:
            raise
        return int(status)


@contextmanager
def real_pulsar(
    folder: Path,
    *,
    version: str = "4.0.7",
    manager: str = "modular",
    brokers: int = 3,
    settings: Mapping[str, object] | None = None,
    cores: float | None = None,
) -> Iterator[RealPulsar]:
    """Run a cluster and end all its processes afterwards.

    With ``cores`` each broker has a cgroup of its own with so much CPU, where that is allowed.

    Raises:
        NoPulsar: this machine cannot run it.
    """
    jars = jars_of(version)
    with ExitStack() as stack:
        zookeeper = stack.enter_context(EmbeddedZooKeeper(tick_ms=1000))
        made = RealPulsar(version, manager, zookeeper.address)
        names = [f"broker-{number}" for number in range(brokers)] if cores else []
        begins = stack.enter_context(own_cgroups(names, cores or 0.0))
        processes = _Processes(jars, folder, begins)
        stack.callback(processes.end)
        store = f"zk:{made.zookeeper}"
        processes.run(
            "org.apache.pulsar.PulsarClusterMetadataSetup",
            *("--cluster", CLUSTER, "--metadata-store", store),
            *("--configuration-metadata-store", store),
            *("--web-service-url", "http://127.0.0.1:8080"),
            *("--broker-service-url", "pulsar://127.0.0.1:6650"),
        )
        bookie_port, *ports = free_ports(1 + 2 * brokers)
        processes.start(
            "bookie", "org.apache.bookkeeper.server.Main", _bookie(made, folder, bookie_port)
        )
        for number in range(brokers):
            web, binary = ports[2 * number : 2 * number + 2]
            made.brokers.append(f"127.0.0.1:{web}")
            made.binary_ports.append(binary)
            values = {
                **_SMALL_BROKER,
                "metadataStoreUrl": store,
                "configurationMetadataStoreUrl": store,
                "clusterName": CLUSTER,
                "advertisedAddress": "127.0.0.1",
                "bindAddress": "127.0.0.1",
                "webServicePort": web,
                "brokerServicePort": binary,
                "loadManagerClassName": MANAGERS[manager],
                **(settings or {}),
            }
            processes.start(f"broker-{number}", "org.apache.pulsar.PulsarBrokerStarter", values)
        processes.until_ready([f"http://{name}/admin/v2/brokers/ready" for name in made.brokers])
        yield made


def _bookie(made: RealPulsar, folder: Path, port: int) -> dict[str, object]:
    return {
        "bookiePort": port,
        "advertisedAddress": "127.0.0.1",
        "allowLoopback": "true",
        "metadataServiceUri": f"zk+hierarchical://{made.zookeeper}/ledgers",
        "journalDirectory": folder / "journal",
        "ledgerDirectories": folder / "ledgers",
        "indexDirectories": folder / "index",
        "journalSyncData": "false",
        "diskUsageThreshold": "0.99",
        "diskUsageWarnThreshold": "0.98",
        "httpServerEnabled": "false",
        "autoRecoveryDaemonEnabled": "false",
    }


class _Processes:
    """Java processes of one cluster; they end with it, and with this process."""

    def __init__(self, jars: Path, folder: Path, begins: Mapping[str, list[str]]) -> None:
        self._folder = folder
        self._begins = begins
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        opens = [f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED]
        memory = ["-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC"]
        netty = ["-Dio.netty.tryReflectionSetAccessible=true"]
        self._java = [str(java()), *memory, *netty, *opens, "-cp", f"{jars}/*"]

    def run(self, main: str, *arguments: str) -> None:
        with (self._folder / "setup.log").open("wb") as log:
            subprocess.run(
                [*self._java, main, *arguments],
                check=True,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                timeout=READY_S,
            )

    def start(self, name: str, main: str, values: Mapping[str, object]) -> None:
        file = self._folder / f"{name}.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        option = "--conf" if name == "bookie" else "--broker-conf"
        with (self._folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [*self._begins.get(name, []), *self._java, main, option, str(file)],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                preexec_fn=mortal,  # noqa: PLW1509 - it asks for a signal and takes no lock
            )

    def until_ready(self, urls: list[str]) -> None:
        deadline_s = time.monotonic() + READY_S
        for url in urls:
            while not _says_ok(url):
                for name, process in self._running.items():
                    said = (self._folder / f"{name}.log").read_text(errors="replace")[-3000:]
                    assert process.poll() is None, f"{name} ended:\n{said}"
                assert time.monotonic() < deadline_s, f"{url} is not ready after {READY_S:g} s"
                time.sleep(0.2)

    def end(self) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()


def _says_ok(url: str) -> bool:
    try:
        with urlopen(url, timeout=2) as reply:  # noqa: S310 - loopback
            content: Any = reply.read()
            return bool(content.strip() == b"ok")
    except OSError:
        return False
