"""A rolling restart of real brokers under load: drained first, and as Pulsar does it."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest
from attaching import balancing, command, even, told_until
from pulsar_traffic import Sends, sending, zipf_rates
from real_pulsar import CLUSTER, RealPulsar, marks

pulsar = pytest.importorskip("pulsar", reason="needs pulsar-client: pip install pulsar-client")

pytestmark = marks(900)
NAMESPACE = "trial/rolling"
NAMES = [f"persistent://{NAMESPACE}/topic-{number}" for number in range(24)]


@pytest.fixture
def traffic(cluster: RealPulsar) -> Iterator[Sends]:
    cluster.create_namespace(NAMESPACE, 16)
    rates = zipf_rates(NAMES, 600.0, 0.5)
    with sending(pulsar, cluster.service_url, rates, send_timeout_s=0) as sends:
        yield sends


def owned(cluster: RealPulsar, broker: int) -> list[str]:
    path = f"/admin/v2/brokers/{CLUSTER}/{cluster.brokers[broker]}/ownedNamespaces"
    return [one for one in cluster.json(path, broker) if one.startswith("trial/")]


def all_served_again(traffic: Sends) -> None:
    since_s = time.monotonic()
    while min(traffic.stored_s.values()) < since_s:
        assert time.monotonic() < since_s + 120.0, traffic.stored_s
        time.sleep(0.2)


def restart(cluster: RealPulsar, broker: int, traffic: Sends) -> float:
    """Stop a broker, start it, and return the longest time without an answer of a topic."""
    before = len(traffic.gaps)
    cluster.end(broker, SIGTERM)
    all_served_again(traffic)
    cluster.start(broker)
    all_served_again(traffic)
    return max((end_s - start_s for _, start_s, end_s in traffic.gaps[before:]), default=0.0)


def test_brokers_are_drained_and_restarted_one_after_the_other(
    cluster: RealPulsar, traffic: Sends, tmp_path: Path
) -> None:
    figures: dict[str, Any] = {"version": cluster.version, "manager": cluster.manager}
    figures["stopped"] = [restart(cluster, broker, traffic) for broker in range(3)]
    limits = ("--moves-per-minute", "300", "--moves-per-namespace", "300")
    with balancing(cluster, tmp_path, "--interval", "2", "--settle", "3", *limits) as (
        process,
        told,
    ):
        told_until(told, lambda line: len(line.get("brokers", ())) == 3 and even(line))
        for kind in ("drained", "restarted"):
            figures[kind] = []
        for broker, name in enumerate(cluster.brokers):
            before, since_s = len(traffic.gaps), time.monotonic()
            drain = command(cluster, tmp_path, "--drain", name, "--reason", "rolling restart")
            done = subprocess.run(drain, capture_output=True, text=True, check=False, timeout=300)
            assert done.returncode == 0, (done.stdout, told[-3:])
            assert f"{name} is empty: it is safe to stop" in done.stdout
            assert owned(cluster, broker) == []
            gaps = [end_s - start_s for _, start_s, end_s in traffic.gaps[before:]]
            figures["drained"].append((time.monotonic() - since_s, max(gaps, default=0.0)))
            figures["restarted"].append(restart(cluster, broker, traffic))
            assert owned(cluster, broker) == [], "it takes nothing before it is uncordoned"
            uncordon = command(cluster, tmp_path, "--uncordon", name)
            subprocess.run(uncordon, check=True, capture_output=True, timeout=60)
        since = len(told)
        told_until(told, lambda line: len(line.get("brokers", ())) == 3 and even(line), since=since)
        process.terminate()
        assert process.wait(60) == 0
    print(json.dumps(figures))  # noqa: T201 - for docs/figures.md
    assert traffic.failed == []
