"""Sidecars of kind ``pulsar`` as processes beside real Pulsar brokers with real clients."""

import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from attaching import PATIENCE_S, overridden
from pulsar_traffic import sending, zipf_rates
from real_pulsar import RealPulsar, lies_in

from loadmanager.adapters.zookeeper.embedded import find_java, zookeeper_class_path
from loadmanager.demo.cluster import free_ports
from loadmanager.pulsar.state import SHEDDING, SWITCHES

_TRANSACTION: Final = re.compile(rb"^\S+ \S+ \S+ UTC session (0x[0-9a-f]+) cxid \S+ zxid \S+ (.*)$")
_ALONE: Final = re.compile(rb"(?:create\w*|setData|delete|setACL) (/[^,]*)")
_WITHIN_MULTI: Final = re.compile(rb"(?:create\w*|setData|delete|check):[^/;]*(/[^\0;]*)")


def paths_written(data_dir: Path) -> dict[str, set[str]]:
    """Return the paths that each session has created, set or deleted so far.

    A session is the hexadecimal number that the log has; one that wrote nothing is left out.
    """
    server = zookeeper_class_path()
    # The server does not need it, its tool does.
    options = next(Path(server.split(os.pathsep)[0]).parent.glob("commons-cli-*.jar"))
    found: dict[str, set[str]] = defaultdict(set)
    for log in sorted((data_dir / "data/version-2").glob("log.*")):
        shown = subprocess.run(
            [
                *(find_java(), "-Duser.timezone=UTC", "-Duser.language=en", "-Duser.country=US"),
                *("-classpath", f"{server}{os.pathsep}{options}"),
                *("org.apache.zookeeper.server.persistence.TxnLogToolkit", "--dump", log),
            ],
            capture_output=True,
            check=True,
        ).stdout
        for line in shown.split(b"\n"):
            transaction = _TRANSACTION.match(line)
            if not transaction:
                continue  # The rest of a value with line ends, or of an access list.
            session, what = transaction.groups()
            alone = _ALONE.match(what)
            within = _WITHIN_MULTI.findall(what) if what.startswith(b"multi ") else ()
            for path in [alone[1]] if alone else within:
                found[session.decode()].add(path.decode(errors="replace"))
    return dict(found)


pulsar = pytest.importorskip("pulsar", reason="needs pulsar-client: pip install pulsar-client")
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(600), pytest.mark.flaky(reruns=1)]
NAMESPACE, BUNDLES = "trial/beside", 16
NAMES = [f"persistent://{NAMESPACE}/topic-{number}" for number in range(24)]
RATES = zipf_rates(NAMES, 1200.0, 0.5)
OFF = dict.fromkeys(SWITCHES, "false")
SETTINGS = """
[cluster]
name = "trial"
[report]
sample_interval_s = 2
min_interval_s = 2
max_interval_s = 10
[leader]
round_interval_s = 5
tick_interval_s = 1
settle_s = 3
[shedding]
strategy = "uniform"
grace_period_s = 10
settings = {rate_difference_percent = 20, max_share = 0.5, min_msgs_per_s = 1}
[placement]
strategy = "least_long_term_message_rate"
[planner]
mode = "parity"
"""
"""In safe mode no move helps where the brokers' one machine is busy: the CPU of all is full."""


@dataclass
class Sidecar:
    broker: str
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def get(self, path: str) -> Any:
        try:
            with urlopen(f"{self.url}{path}", timeout=20) as reply:  # noqa: S310 - loopback
                return json.loads(reply.read())
        except URLError:
            return None

    def end(self, how: int) -> int:
        self.process.send_signal(how)
        return self.process.wait(PATIENCE_S)

    def last_lines(self) -> str:
        lines = [line for line in self.log.read_text().splitlines() if '"debug"' not in line]
        return "\n".join([f"--- {self.broker}", *lines[-40:]])

    @property
    def leads(self) -> bool:
        leader = self.get("/admin/v2/brokers/leaderBroker")
        return leader is not None and leader["brokerId"] == self.broker


@contextmanager
def sidecar(cluster: RealPulsar, broker: int, port: int, folder: Path) -> Iterator[Sidecar]:
    name = cluster.brokers[broker]
    file, log = folder / f"sidecar-{broker}.toml", folder / f"sidecar-{broker}.log"
    file.write_text(
        f"""
[broker]
kind = "pulsar"
id = "{name}"
[sidecar]
listen_host = "127.0.0.1"
listen_port = {port}
health_port = 0
[zookeeper]
hosts = "{cluster.zookeeper}"
session_timeout_s = 4
chroot = "/{folder.name}"
tick_s = 1
{SETTINGS}"""
    )
    command = [sys.executable, "-m", "loadmanager", "agent", "--config", str(file)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield Sidecar(name, f"http://127.0.0.1:{port}", process, log)
    finally:
        process.kill()
        process.wait()


def until(what: Callable[[], object], sidecars: list[Sidecar]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not what():
        ended = any(one.process.poll() is not None for one in sidecars)
        if ended or time.monotonic() >= deadline_s:
            pytest.fail("\n".join(one.last_lines() for one in sidecars))
        time.sleep(0.3)


def served(cluster: RealPulsar, broker: int) -> list[str]:
    return [one for one in cluster.owned(broker) if one.startswith(f"{NAMESPACE}/")]


def is_even(cluster: RealPulsar) -> bool:
    bundles = [served(cluster, broker) for broker in range(3)]
    rates = [sum(RATES[t] for t in NAMES if any(lies_in(t, b) for b in one)) for one in bundles]
    return sum(rates) > 0.99 * sum(RATES.values()) and max(rates) <= 1.4 * sum(rates) / 3


def drain(sidecar: Sidecar, asked: Sidecar) -> None:
    command = [sys.executable, "-m", "loadmanager", "drain", sidecar.broker, "--timeout", "0"]
    done = subprocess.run(
        [*command, "--url", asked.url], capture_output=True, text=True, check=False
    )
    # Bundles of other namespaces may take longer, or have topics that keep them there.
    assert done.returncode in {0, 1}, (done.stdout, done.stderr)


def look_up(cluster: RealPulsar, topic: str, sidecars: list[Sidecar]) -> None:
    path = f"/lookup/v2/topic/{topic.replace('://', '/')}"

    def agree() -> bool:
        owner = next(
            (n for n in range(3) if any(lies_in(topic, b) for b in served(cluster, n))), None
        )
        address = None if owner is None else cluster.binary_address(owner)
        named = {(one.get(path) or {}).get("brokerUrl") for one in sidecars}
        return named == {f"pulsar://{address}"}

    until(agree, sidecars)


def check_that_only_the_chroot_was_written(cluster: RealPulsar, chroot: str) -> None:
    sessions = paths_written(cluster.zookeeper_data)

    def ours(path: str) -> bool:
        return path == chroot or path.startswith(f"{chroot}/")

    sidecars = {one: paths for one, paths in sessions.items() if any(map(ours, paths))}
    assert len(sidecars) >= 3
    assert [path for paths in sidecars.values() for path in paths if not ours(path)] == []
    # Those that the log shows to have written the nodes of Pulsar's are other ones.
    assert any(
        path.startswith("/admin/") for one in sessions.keys() - sidecars for path in sessions[one]
    )


def test_sidecars_balance_and_go_on_without_their_leader_and_the_last_one_restores(
    cluster: RealPulsar, tmp_path: Path
) -> None:
    cluster.create_namespace(NAMESPACE, BUNDLES)
    ports, setting = free_ports(3), f"/admin/v2/brokers/configuration/{SHEDDING}"
    with sending(pulsar, cluster.service_url, RATES) as sends, ExitStack() as running:
        cluster.gather(NAMESPACE, NAMES)
        assert cluster.put(f"{setting}/true", method="POST") == 200
        running.callback(cluster.put, setting, method="DELETE")
        third = running.enter_context(sidecar(cluster, 2, ports[2], tmp_path))
        until(lambda: third.leads, [third])  # Because the others come later.
        first, second = (
            running.enter_context(sidecar(cluster, one, ports[one], tmp_path)) for one in (0, 1)
        )
        until(lambda: overridden(cluster) == OFF, [first, second, third])
        until(lambda: is_even(cluster), [first, second, third])
        look_up(cluster, NAMES[0], [first, second, third])
        third.end(SIGKILL)
        left = [first, second]
        until(lambda: first.leads or second.leads, left)
        assert overridden(cluster) == OFF
        drain(second, asked=first)
        until(lambda: not served(cluster, 1), left)
        assert overridden(cluster) == OFF
        assert first.end(SIGTERM) == 0
        assert overridden(cluster) == OFF
        assert second.end(SIGTERM) == 0
        assert overridden(cluster) == {SHEDDING: "true"}
        assert sends.failed == []
    check_that_only_the_chroot_was_written(cluster, f"/{tmp_path.name}")
