"""`loadmanager attach --balance` at real Pulsar brokers with real clients."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from urllib.request import urlopen

import pytest
from attaching import balancing, command, first
from pulsar_traffic import Sends, sending, zipf_rates
from real_pulsar import RealPulsar

from loadmanager.attach.quiet import SHEDDING, SWITCHES

pulsar = pytest.importorskip("pulsar", reason="needs pulsar-client: pip install pulsar-client")

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(600)]

NAMESPACE, BUNDLES = "trial/zipf", 32
NAMES = [f"persistent://{NAMESPACE}/topic-{number}" for number in range(50)]
RATES = zipf_rates(NAMES, 2500.0, 0.5)
WATCHED_S = float(os.environ.get("LOADMANAGER_PULSAR_WATCHED_S", "40"))
SPLITS = SWITCHES[1]
COUNTED = re.compile(
    rf'^pulsar_in_messages_total\{{[^}}]*topic="persistent://{NAMESPACE}/[^}}]*\}} (\S+)',
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def traffic(cluster: RealPulsar) -> Iterator[Sends]:
    cluster.create_namespace(NAMESPACE, BUNDLES)
    with sending(pulsar, cluster.service_url, RATES) as sends:
        yield sends


@pytest.fixture
def all_on_one(cluster: RealPulsar, traffic: Sends) -> Sends:
    """Let the first broker have all traffic, and forget which sends were slow before."""
    cluster.gather(NAMESPACE, NAMES)
    time.sleep(1)
    traffic.slowest_s = 0.0
    return traffic


def counted(cluster: RealPulsar) -> list[float]:
    """Return the messages that each broker has counted, as it tells Prometheus."""
    found = []
    for name in cluster.brokers:
        with urlopen(f"http://{name}/metrics/", timeout=30) as reply:
            found.append(sum(map(float, COUNTED.findall(reply.read().decode()))))
    return found


def max_over_mean(cluster: RealPulsar, window_s: float) -> float:
    """Return how uneven brokers' message rates are over a window without moves."""
    before = counted(cluster)
    time.sleep(window_s)
    rates = [now - then for now, then in zip(counted(cluster), before, strict=True)]
    return max(rates) / (sum(rates) / len(rates))


def dynamic(cluster: RealPulsar) -> dict[str, str]:
    values: dict[str, str] = cluster.json("/admin/v2/brokers/configuration/values")
    return {key: value for key, value in values.items() if key in SWITCHES}


def effective(cluster: RealPulsar) -> list[dict[str, str]]:
    path = "/admin/v2/brokers/configuration/runtime"
    runtimes = [cluster.json(path, number) for number in range(len(cluster.brokers))]
    return [{key: runtime[key] for key in SWITCHES} for runtime in runtimes]


def set_dynamic(cluster: RealPulsar, key: str, value: str) -> None:
    status = cluster.put(f"/admin/v2/brokers/configuration/{key}/{value}", method="POST")
    assert status == 200


def clear_dynamic(cluster: RealPulsar) -> None:
    for key in SWITCHES:
        cluster.put(f"/admin/v2/brokers/configuration/{key}", method="DELETE")


def test_traffic_on_one_broker_is_even_within_30_s_and_stays_so(
    cluster: RealPulsar, all_on_one: Sends, tmp_path: Path
) -> None:
    before = effective(cluster)
    with balancing(cluster, tmp_path) as (process, told):
        whole = first(told, "whole", value=True)
        began_s = time.monotonic()
        assert whole["maxOverMean"] > 2.5
        # The window has to end within 30 s, so it begins before 20 s.
        time.sleep(15)
        reached = max_over_mean(cluster, 10)
        assert time.monotonic() < began_s + 30
        assert reached <= 1.10
        time.sleep(WATCHED_S)
        process.terminate()
        assert process.wait(60) == 0
    tasks = [line["task"] for line in told if "task" in line]
    ended = [one for one in tasks if one["state"] != "ordered"]
    assert {one["state"] for one in ended} <= {"serving", "landed_elsewhere"}
    assert all(one["reason"] for one in ended if one["state"] == "landed_elsewhere")
    assert all_on_one.failed == []
    later = [line for line in told[told.index(whole) + 1 :] if "verdict" in line and line["whole"]]
    gaps = [line["maxOverMean"] - line["leastMaxOverMean"] for line in later]
    figures = {
        "version": cluster.version,
        "manager": cluster.manager,
        "max_over_mean_from_15_to_25_s": round(reached, 3),
        "moves": len(ended),
        "attempts": sum(one["attempts"] for one in ended),
        "slowest_send_s": round(all_on_one.slowest_s, 3),
        "gaps": [round(gap, 3) for gap in gaps],
    }
    sys.stdout.write(f"{json.dumps(figures)}\n")
    assert median(gaps) <= 0.05
    assert sum(gap > 0.10 for gap in gaps) <= 0.05 * len(gaps)
    assert dynamic(cluster) == {}
    assert effective(cluster) == before


def test_after_a_kill_amid_moves_restore_sets_exactly_what_was_there(
    cluster: RealPulsar, all_on_one: Sends, tmp_path: Path
) -> None:
    set_dynamic(cluster, SHEDDING, "true")
    before = {SHEDDING: "true"}
    try:
        assert dynamic(cluster) == before
        with balancing(cluster, tmp_path, "--interval", "4") as (process, told):
            first(told, "state", "ordered")
            process.kill()
            process.wait()
        assert dynamic(cluster) == dict.fromkeys(SWITCHES, "false")
        done = subprocess.run(
            command(cluster, tmp_path, "--restore"), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert dynamic(cluster) == before
        assert all(one[SHEDDING] == "true" for one in effective(cluster))
        assert all(one[SPLITS] == "true" for one in effective(cluster))
    finally:
        clear_dynamic(cluster)
    time.sleep(3)
    assert all_on_one.failed == []
    assert all_on_one.slowest_s < 15


@pytest.mark.usefixtures("traffic")
def test_shedding_that_somebody_switches_on_stops_it(cluster: RealPulsar, tmp_path: Path) -> None:
    try:
        with balancing(cluster, tmp_path, "--interval", "2") as (process, told):
            first(told, "event", "Pulsar's own shedding and automatic splits are off")
            set_dynamic(cluster, SHEDDING, "true")
            assert process.wait(60) == 1
        assert dynamic(cluster) == {SHEDDING: "true"}
    finally:
        clear_dynamic(cluster)
