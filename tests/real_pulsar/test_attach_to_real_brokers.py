"""`loadmanager attach` at real Pulsar brokers with real clients: what it sees is what is sent."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from attaching import PATIENCE_S
from kazoo.client import KazooClient
from pulsar_traffic import sending, zipf_rates
from real_pulsar import CLUSTER, RealPulsar

pulsar = pytest.importorskip("pulsar", reason="needs pulsar-client: pip install pulsar-client")
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(600), pytest.mark.flaky(reruns=1)]
TOPICS, RATE_PER_S = 24, 240.0
NAMESPACE = "trial/skew"
NAMES = [f"persistent://{NAMESPACE}/topic-{number}" for number in range(TOPICS)]


@pytest.fixture
def traffic(cluster: RealPulsar) -> Iterator[None]:
    cluster.create_namespace(NAMESPACE, 16)
    with sending(pulsar, cluster.service_url, zipf_rates(NAMES, RATE_PER_S, 0.0)):
        yield


def attach(cluster: RealPulsar, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loadmanager", "attach", "--pulsar", cluster.url, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def seen(cluster: RealPulsar, *options: str) -> dict[str, Any]:
    found = attach(cluster, "--once", "--json", *options)
    assert found.returncode == 0, found.stderr
    told: dict[str, Any] = json.loads(found.stdout)
    return told


def nodes(zookeeper: KazooClient, path: str) -> dict[str, tuple[bytes, int, int]]:
    content, stat = zookeeper.get(path)
    found = {path: (content, stat.version, stat.czxid)}
    for child in zookeeper.get_children(path):
        found |= nodes(zookeeper, f"{path}/{child}".replace("//", "/"))
    return found


@pytest.mark.usefixtures("traffic")
def test_what_is_sent_is_seen_on_the_brokers_that_own_it(cluster: RealPulsar) -> None:
    # In a window topics may be loaded, and a busy machine may send less than it should.
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        told = seen(cluster, "--interval", "8")
        sent = sum(one["msgsInPerS"] for one in told["brokers"])
        # Each producer's clock and the metrics' own delay: within a tenth.
        if told["whole"] and sent == pytest.approx(RATE_PER_S, rel=0.1):
            break
        assert time.monotonic() < deadline_s, told
    assert told["cluster"] == CLUSTER
    assert told["version"] == cluster.version
    assert told["manager"] == cluster.manager
    assert sorted(one["broker"] for one in told["brokers"]) == sorted(cluster.brokers)
    assert sum(one["topics"] for one in told["brokers"]) >= TOPICS
    assert told["maxOverMean"] >= told["plannedMaxOverMean"] >= told["leastMaxOverMean"] - 1e-6


@pytest.mark.usefixtures("traffic")
def test_an_uneven_cluster_is_judged_and_nothing_is_changed(cluster: RealPulsar) -> None:
    cluster.gather(NAMESPACE, NAMES)
    zookeeper = KazooClient(cluster.zookeeper)
    zookeeper.start()
    try:
        watched = ["/admin", "/namespace"] if cluster.manager == "modular" else ["/admin"]
        deadline_s = time.monotonic() + PATIENCE_S
        # Pulsar itself may still be at work; what a look changed would change each time.
        while True:
            before = [nodes(zookeeper, path) for path in watched]
            told = seen(cluster, "--interval", "4")
            if [nodes(zookeeper, path) for path in watched] == before:
                break
            assert time.monotonic() < deadline_s, before
    finally:
        zookeeper.stop()
        zookeeper.close()
    assert told["proposals"], told["verdict"]
    assert told["plannedMaxOverMean"] < told["maxOverMean"]
    proposed = {one["bundle"] for one in told["proposals"]}
    assert all(bundle.startswith(f"{NAMESPACE}/") for bundle in proposed)
    # A broker's own figures hold its start for two minutes; its CPU time is there at once.
    for strategy in ("threshold", "joint"):
        told = seen(cluster, "--strategy", strategy, "--interval", "2", "--cores", "0.5")
        assert told["missing"] == {}
        weighed = {one["about"] for one in told["refusals"]}
        weighed |= {one["source"] for one in told["proposals"]}
        assert weighed >= set(cluster.brokers), told


def test_the_doctor_reads_a_real_cluster(cluster: RealPulsar) -> None:
    found = attach(cluster, "--doctor", "--interval", "1")
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"3 of 3 brokers answer; version {cluster.version}" in found.stdout
    assert (
        "loadBalancerSheddingEnabled: false: without attach --balance or sidecars" in found.stdout
    )
