"""A real Pulsar cluster on loopback: ZooKeeper, a bookie and brokers, each in its own process."""

import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from pulsar_processes import NoPulsar, Processes, jars_of
from secured_pulsar import Secured

from loadmanager.adapters.zookeeper.embedded import EmbeddedZooKeeper
from loadmanager.core.hashing import position
from loadmanager.core.ids import parse_bundle, parse_full_topic, range_of
from loadmanager.demo.cluster import free_ports

ROOT: Final = Path("/sys/fs/cgroup")
_PERIOD_US: Final = 100_000
_MOST_SHARES: Final = 262_144
_MOST_WEIGHT: Final = 10_000


@contextmanager
def own_cgroups(cores: Mapping[str, float]) -> Iterator[dict[str, list[str]]]:
    """Make cgroups of version 1 or 2 and yield, for each name, how a command begins to run in it.

    What is in them goes before other work of the machine, as far as their limit allows. Without
    the right to make one, commands begin as they are.
    """
    made: dict[str, list[Path]] = {}
    try:
        for name, share in cores.items():
            with suppress(OSError):
                made[name] = _make(f"loadmanager-{os.getpid()}-{name}", share)
        yield {name: _entering(made.get(name, [])) for name in cores}
    finally:
        for folder in (one for folders in made.values() for one in folders):
            with suppress(OSError):
                folder.rmdir()


def _make(name: str, cores: float) -> list[Path]:
    quota_us = round(cores * _PERIOD_US)
    if (ROOT / "cgroup.controllers").exists():
        folder = ROOT / name
        folder.mkdir()
        (folder / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        (folder / "cpu.weight").write_text(str(_MOST_WEIGHT))
        return [folder]
    cpu, accounting = ROOT / "cpu" / name, ROOT / "cpuacct" / name
    cpu.mkdir()
    accounting.mkdir(exist_ok=True)
    (cpu / "cpu.cfs_quota_us").write_text(str(quota_us))
    (cpu / "cpu.shares").write_text(str(_MOST_SHARES))
    return [cpu, accounting]


def _entering(folders: list[Path]) -> list[str]:
    if not folders:
        return []
    enter = "; ".join(f"echo $$ > {folder}/cgroup.procs" for folder in folders)
    return ["sh", "-c", f'{enter}; exec "$@"', "sh"]


CLUSTER: Final = "trial"
MANAGERS: Final = {
    "modular": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
    "extensible": "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl",
}
VERSION: Final = os.environ.get("LOADMANAGER_PULSAR_VERSION", "4.0.7")
_CHOSEN: Final = os.environ.get("LOADMANAGER_PULSAR_MANAGER") or "modular"
_KNOWN: Final = ["modular"] if VERSION.startswith("2.") else sorted(MANAGERS)
CHOSEN: Final = _KNOWN if _CHOSEN == "both" else [_CHOSEN]
"""The managers that are to be tested; Pulsar has the extensible one from version 3 on."""
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
    "forceDeleteNamespaceAllowed": "true",
    "metadataStoreSessionTimeoutMillis": 5000,
}


def marks(timeout_s: int) -> list[pytest.MarkDecorator]:
    """Return the marks of tests that are run before a release, not at every commit."""
    kinds = [pytest.mark.pulsar, pytest.mark.thorough, pytest.mark.flaky(reruns=1)]
    return [*kinds, pytest.mark.timeout(timeout_s)]


@dataclass(slots=True)
class RealPulsar:
    """A running cluster; ``brokers`` are their ids, ``host:port`` of their web services.

    Secured ones are asked at ``tls``. Each broker has a loopback address of its own, because
    isolation policies name brokers by it.
    """

    version: str
    manager: str
    zookeeper: str
    zookeeper_data: Path
    processes: Processes
    secured: Secured | None = None
    brokers: list[str] = field(default_factory=list)
    tls: list[str] = field(default_factory=list)
    binary_ports: list[int] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.url_of(0)

    @property
    def service_url(self) -> str:
        return "pulsar://" + ",".join(map(self.binary_address, range(len(self.brokers))))

    def binary_address(self, broker: int) -> str:
        """Return ``host:port`` at which a broker serves clients."""
        return f"{_host(broker)}:{self.binary_ports[broker]}"

    def url_of(self, broker: int) -> str:
        return f"https://{self.tls[broker]}" if self.secured else f"http://{self.brokers[broker]}"

    def put(self, path: str, body: str = "", method: str = "PUT", broker: int = 0) -> int:
        return _ask(f"{self.url_of(broker)}{path}", method, body)

    def json(self, path: str, broker: int = 0) -> Any:
        with urlopen(f"http://{self.brokers[broker]}{path}", timeout=60) as reply:
            return json.loads(reply.read())

    def cpu_s(self) -> list[float]:
        return [self.processes.cpu_s(f"broker-{number}") for number in range(len(self.brokers))]

    def leader(self) -> int:
        found = self.json("/admin/v2/brokers/leaderBroker")["serviceUrl"]
        return self.brokers.index(urlsplit(found).netloc)

    def end(self, broker: int, how: Signals) -> None:
        self.processes.end_one(f"broker-{broker}", how)

    def start(self, broker: int) -> None:
        self.processes.start_again(f"broker-{broker}")
        self.until_ready()

    def log(self, broker: int) -> list[str]:
        return self.processes.log(f"broker-{broker}")

    def until_ready(self) -> None:
        urls = [
            f"{self.url_of(number)}/admin/v2/brokers/ready" for number in range(len(self.brokers))
        ]
        self.processes.until_ready(urls, self.secured)

    def create_namespace(self, name: str, bundles: int) -> None:
        """Create a namespace; it may be there already."""
        body = f'{{"bundles": {{"numBundles": {bundles}}}, "replication_clusters": ["{CLUSTER}"]}}'
        assert self.put(f"/admin/v2/namespaces/{name}", body) in {204, 409}

    def owned(self, broker: int) -> set[str]:
        name = self.brokers[broker]
        return set(self.json(f"/admin/v2/brokers/{CLUSTER}/{name}/ownedNamespaces", broker))

    def gather(
        self, namespace: str, topics: Iterable[str], limit_s: float = 240, broker: int = 0
    ) -> None:
        target, deadline_s = self.brokers[broker], time.monotonic() + limit_s
        while True:
            away = {
                bundle
                for number in range(len(self.brokers))
                if number != broker
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
                            self.json(f"/lookup/v2/topic/{path}?authoritative=true", broker)
            time.sleep(0.5)


def lies_in(topic: str, bundle: str) -> bool:
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
    cores: Sequence[float] = (),
    secured: Secured | None = None,
) -> Iterator[RealPulsar]:
    """Run a cluster and end all its processes afterwards.

    With ``cores`` each broker has a cgroup of its own with so much CPU, where that is allowed;
    its place there is that of the broker.
    With ``secured`` brokers have ports for TLS and want tokens.

    Raises:
        NoPulsar: this machine cannot run it.
    """
    jars = jars_of(version)
    for number in range(brokers):
        _require_address(_host(number))
    with ExitStack() as stack:
        data = folder / "zookeeper"
        zookeeper = stack.enter_context(
            EmbeddedZooKeeper(tick_ms=1000, data_dir=data, config={"forceSync": "no"})
        )
        shares = {f"broker-{number}": share for number, share in enumerate(cores)}
        begins = stack.enter_context(own_cgroups(shares))
        processes = Processes(jars, folder, begins)
        stack.callback(processes.end)
        made = RealPulsar(version, manager, zookeeper.address, data, processes, secured)
        store = f"zk:{made.zookeeper}"
        processes.run(
            "org.apache.pulsar.PulsarClusterMetadataSetup",
            *("--cluster", CLUSTER, "--metadata-store", store),
            *("--configuration-metadata-store", store),
            *("--web-service-url", "http://127.0.0.1:8080"),
            *("--broker-service-url", "pulsar://127.0.0.1:6650"),
        )
        bookie_port, *ports = free_ports(1 + 4 * brokers)
        processes.start(
            "bookie", "org.apache.bookkeeper.server.Main", _bookie(made, folder, bookie_port)
        )
        for number in range(brokers):
            web, binary, web_tls, binary_tls = ports[4 * number : 4 * number + 4]
            named = web_tls if secured and not secured.beside_plain else web
            made.brokers.append(f"{_host(number)}:{named}")
            made.tls.append(f"{_host(number)}:{web_tls}")
            made.binary_ports.append(binary)
            values = {
                **_SMALL_BROKER,
                "metadataStoreUrl": store,
                "configurationMetadataStoreUrl": store,
                "clusterName": CLUSTER,
                "advertisedAddress": _host(number),
                "bindAddress": _host(number),
                "webServicePort": web,
                "brokerServicePort": binary,
                "loadManagerClassName": MANAGERS[manager],
                **(secured.settings(web_tls, binary_tls) if secured else {}),
                **(settings or {}),
            }
            processes.start(f"broker-{number}", "org.apache.pulsar.PulsarBrokerStarter", values)
        made.until_ready()
        yield made


@contextmanager
def trial_cluster(
    folder: Path,
    manager: str,
    *,
    version: str = VERSION,
    brokers: int = 3,
    settings: Mapping[str, object] | None = None,
) -> Iterator[RealPulsar]:
    """Run a cluster with the tenant of the tests; they are skipped where it cannot run."""
    try:
        with real_pulsar(
            folder, version=version, manager=manager, brokers=brokers, settings=settings
        ) as made:
            body = f'{{"allowedClusters": ["{CLUSTER}"], "adminRoles": []}}'
            assert made.put("/admin/v2/tenants/trial", body) == 204
            yield made
    except NoPulsar as error:
        pytest.skip(str(error))


def _host(broker: int) -> str:
    return f"127.0.0.{broker + 1}"


def _require_address(host: str) -> None:
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            # Linux has all of 127.0.0.0/8, macOS the first address alone.
            raise NoPulsar(f"needs the address {host}: sudo ifconfig lo0 alias {host}") from error


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
        "diskUsageThreshold": "0.999",
        "diskUsageWarnThreshold": "0.998",
        "httpServerEnabled": "false",
        "autoRecoveryDaemonEnabled": "false",
    }
