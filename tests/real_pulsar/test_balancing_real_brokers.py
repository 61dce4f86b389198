"""`loadmanager attach --balance` at real Pulsar brokers with real clients."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from attaching import PATIENCE_S, balancing, command, first, overridden, told_until
from pulsar_traffic import Sends, sending, zipf_rates
from pulsar_watch import Watch, quantile, watching
from real_pulsar import RealPulsar

from loadmanager.pulsar.state import SHEDDING, SWITCHES

pulsar = pytest.importorskip("pulsar", reason="needs pulsar-client: pip install pulsar-client")
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(600), pytest.mark.flaky(reruns=1)]
NAMESPACE, BUNDLES = "trial/zipf", 32
NAMES = [f"persistent://{NAMESPACE}/topic-{number}" for number in range(50)]
RATES = zipf_rates(NAMES, 2500.0, 0.5)
WATCHED_S = float(os.environ.get("LOADMANAGER_PULSAR_WATCHED_S", "20"))
AT_EASE = "LOADMANAGER_PULSAR_WATCHED_S" in os.environ
"""Whether nothing else keeps the machine busy, so that times in seconds can be judged."""
SPLITS = SWITCHES[1]


@pytest.fixture(scope="module")
def traffic(cluster: RealPulsar) -> Iterator[Sends]:
    cluster.create_namespace(NAMESPACE, BUNDLES)
    with sending(pulsar, cluster.service_url, RATES, PATIENCE_S) as sends:
        yield sends


@pytest.fixture
def all_on_one(cluster: RealPulsar, traffic: Sends) -> Sends:
    cluster.gather(NAMESPACE, NAMES)
    time.sleep(1)
    traffic.slowest_s = 0.0
    traffic.gaps.clear()
    traffic.failed.clear()
    return traffic


def until_even(watch: Watch, since_s: float) -> float:
    """Wait for a window that began later and in which traffic is even; return when it ended."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        ratios = watch.max_over_mean()
        for at_s, ratio in ratios:
            if at_s > since_s and ratio <= 1.10:
                return at_s
        assert time.monotonic() < deadline_s, ratios
        time.sleep(0.2)


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
    with watching(cluster, NAMESPACE) as watch, balancing(cluster, tmp_path) as (process, told):
        whole = first(told, "whole", value=True)
        began_s = time.monotonic()
        assert whole["maxOverMean"] > 2.5
        even_after_s = until_even(watch, began_s) - began_s
        lines_until_even = len(told)
        time.sleep(WATCHED_S)
        told_until(told, lambda line: line.get("whole", False), since=lines_until_even)
        process.terminate()
        assert process.wait(60) == 0
    tasks = [line["task"] for line in told if "task" in line]
    ended = [one for one in tasks if one["state"] != "ordered"]
    # On a busy machine a limit may hold a move back, or the end of the command.
    others = {
        one["state"]: one["reason"]
        for one in ended
        if one["state"] != "serving" and not one["reason"].startswith("held: ")
    }
    assert others.keys() <= {"landed_elsewhere"}, others
    assert all(others.values())
    assert all_on_one.failed == []
    later = [one for one in told[lines_until_even:] if "verdict" in one and one["whole"]]
    gaps = [line["maxOverMean"] - line["leastMaxOverMean"] for line in later]
    pauses_s = watch.pauses_s(all_on_one)
    figures = {
        "version": cluster.version,
        "manager": cluster.manager,
        "even_after_s": round(even_after_s, 1),
        "moves": len(ended),
        "attempts": sum(one["attempts"] for one in ended),
        "slowest_send_s": round(all_on_one.slowest_s, 3),
        "pauses_s": [quantile(pauses_s, share) for share in (0.5, 0.99, 1.0)],
        "max_over_mean": [round(ratio, 3) for _, ratio in watch.max_over_mean()],
        "gaps": [round(gap, 3) for gap in gaps],
    }
    sys.stdout.write(f"{json.dumps(figures)}\n")
    assert even_after_s <= (30 if AT_EASE else PATIENCE_S)
    assert median(gaps) <= 0.10  # 0.061 at 4.0.7: what remains is not worth a move.
    # A machine that is busy with other tests may spoil one window.
    assert sum(gap > 0.10 for gap in gaps) <= max(0.05 * len(gaps), 0 if AT_EASE else 1)
    assert overridden(cluster) == {}
    assert effective(cluster) == before


def test_after_a_kill_amid_moves_restore_sets_exactly_what_was_there(
    cluster: RealPulsar, all_on_one: Sends, tmp_path: Path
) -> None:
    set_dynamic(cluster, SHEDDING, "true")
    before = {SHEDDING: "true"}
    try:
        assert overridden(cluster) == before
        with (
            watching(cluster, NAMESPACE) as watch,
            balancing(cluster, tmp_path, "--interval", "4") as (process, told),
        ):
            # Others are under way when the first one ends.
            first(told, "state", "serving")
            process.kill()
            process.wait()
            time.sleep(5)
            silent_s = time.monotonic() - min(all_on_one.stored_s.values())
        assert overridden(cluster) == dict.fromkeys(SWITCHES, "false")
        done = subprocess.run(
            command(cluster, tmp_path, "--restore"), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert overridden(cluster) == before
        assert all(one[SHEDDING] == "true" for one in effective(cluster))
        assert all(one[SPLITS] == "true" for one in effective(cluster))
    finally:
        clear_dynamic(cluster)
    pauses_s = watch.pauses_s(all_on_one)
    sys.stdout.write(f"{json.dumps({'manager': cluster.manager, 'pauses_s': pauses_s})}\n")
    assert watch.moved
    assert all_on_one.failed == []
    assert max([silent_s, *pauses_s]) < (2 if AT_EASE else 30)


@pytest.mark.usefixtures("traffic")
def test_shedding_that_somebody_switches_on_stops_it(cluster: RealPulsar, tmp_path: Path) -> None:
    try:
        with balancing(cluster, tmp_path, "--interval", "2") as (process, told):
            first(told, "event", "Pulsar's own shedding and automatic splits are off")
            set_dynamic(cluster, SHEDDING, "true")
            assert process.wait(60) == 1
        assert overridden(cluster) == {SHEDDING: "true"}
    finally:
        clear_dynamic(cluster)
