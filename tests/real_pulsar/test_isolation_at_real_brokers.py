"""`loadmanager attach --balance` keeps to isolation policies that real brokers enforce."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attaching import balancing, ended_tasks, told_until
from pulsar_traffic import sending, zipf_rates
from real_pulsar import CLUSTER, RealPulsar, marks

pulsar = pytest.importorskip("pulsar", reason="needs pulsar-client: pip install pulsar-client")

pytestmark = marks(600)
GOVERNED, FREE = "trial/governed", "trial/free"
TOPICS = {
    name: [f"persistent://{name}/topic-{number}" for number in range(24)]
    for name in (GOVERNED, FREE)
}
POLICIES = f"/admin/v2/clusters/{CLUSTER}/namespaceIsolationPolicies"


@contextmanager
def governed(cluster: RealPulsar) -> Iterator[None]:
    """Let one namespace be served by the second and third broker alone.

    Pulsar unloads nothing for it where it can be kept from that.
    """
    hosts = [cluster.brokers[number].rpartition(":")[0].replace(".", r"\.") for number in (1, 2)]
    policy = {
        "namespaces": [GOVERNED],
        "primary": hosts,
        "secondary": [],
        "unload_scope": "none",
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "1", "usage_threshold": "100"},
        },
    }
    assert cluster.put(f"{POLICIES}/two", json.dumps(policy), method="POST") == 204
    try:
        yield
    finally:
        assert cluster.put(f"{POLICIES}/two", method="DELETE") == 204


def served(cluster: RealPulsar, namespace: str) -> list[int]:
    owned = map(cluster.owned, range(len(cluster.brokers)))
    return [sum(one.startswith(f"{namespace}/") for one in bundles) for bundles in owned]


@pytest.fixture(autouse=True)
def namespaces(cluster: RealPulsar) -> None:
    for name in TOPICS:
        cluster.create_namespace(name, 8)


def test_a_governed_namespace_is_even_among_primaries(cluster: RealPulsar, tmp_path: Path) -> None:
    rates = {**zipf_rates(TOPICS[GOVERNED], 800.0, 0.0), **zipf_rates(TOPICS[FREE], 80.0, 0.0)}
    with governed(cluster), sending(pulsar, cluster.service_url, rates) as sends:
        cluster.gather(GOVERNED, TOPICS[GOVERNED], broker=1)
        cluster.gather(FREE, TOPICS[FREE], broker=0)
        with balancing(cluster, tmp_path, "--interval", "4") as (process, told):

            def shared(line: dict[str, Any]) -> bool:
                by_broker = [one["msgsInPerS"] for one in line.get("brokers", ())]
                return bool(line.get("whole")) and max(by_broker) <= 1.3 * 400

            told_until(told, shared)
            # The first broker has a tenth of what the others have, and would be next.
            told_until(told, lambda line: line.get("whole", False), since=len(told))
            process.terminate()
            assert process.wait(60) == 0
    first, *primaries = served(cluster, GOVERNED)
    assert first == 0
    assert sorted(primaries) in ([3, 5], [4, 4])
    assert served(cluster, FREE) == [8, 0, 0]
    assert {one["state"] for one in ended_tasks(told)} == {"serving"}
    assert sends.failed == []


def test_a_policy_that_is_set_later_is_enforced_first(cluster: RealPulsar, tmp_path: Path) -> None:
    rates = zipf_rates(TOPICS[GOVERNED], 240.0, 0.0)
    with sending(pulsar, cluster.service_url, rates) as sends:
        cluster.gather(GOVERNED, TOPICS[GOVERNED], broker=0)
        with governed(cluster), balancing(cluster, tmp_path, "--interval", "4") as (process, told):
            # Versions before 4.0 unload them by themselves.
            told_until(told, lambda line: "verdict" in line and not served(cluster, GOVERNED)[0])
            process.terminate()
            assert process.wait(60) == 0
            _, *primaries = served(cluster, GOVERNED)
    assert sum(primaries) == 8
    assert {one["state"] for one in ended_tasks(told)} <= {"serving"}
    proposed = [one for line in told for one in line.get("proposals", ())]
    causes = {one["cause"] for one in proposed if one["source"] == cluster.brokers[0]}
    assert causes <= {"isolation"}
    assert sends.failed == []
