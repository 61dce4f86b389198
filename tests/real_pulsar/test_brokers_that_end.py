"""`loadmanager attach --balance` while real brokers, Pulsar's own leader too, end and come back."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from signal import SIGKILL, SIGTERM
from time import monotonic
from typing import Any, Final

import pytest
from attaching import (
    PATIENCE_S,
    balancing,
    command,
    ended_tasks,
    even,
    first,
    overridden,
    told_until,
)
from pulsar_traffic import Sends, sending, zipf_rates
from real_pulsar import CLUSTER, VERSION, RealPulsar, lies_in, marks

from loadmanager.pulsar.state import SWITCHES

SILENT_S: Final = 5.0
_LOG_LINES: Final = 20
_MOST_CHARACTERS: Final = 700


@contextmanager
def unserved_told(cluster: RealPulsar, sends: Sends) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        error.add_note(unserved(cluster, sends))
        raise


def unserved(cluster: RealPulsar, sends: Sends) -> str:
    now_s = monotonic()
    silent = {one: now_s - at_s for one, at_s in sends.stored_s.items() if now_s - at_s > SILENT_S}
    lines = [f"{topic}: no message stored for {for_s:.1f} s" for topic, for_s in silent.items()]
    for bundle in sorted({_bundle(cluster, topic) for topic in silent}):
        lines.append(f"{bundle}:")
        topic = next(one for one in silent if lies_in(one, bundle))
        for number, name in enumerate(cluster.brokers):
            owned = f"/admin/v2/brokers/{CLUSTER}/{name}/ownedNamespaces"
            listed = _asked(cluster, number, owned)
            serves = bundle in listed if isinstance(listed, dict) else listed
            found = _asked(cluster, number, f"/lookup/v2/topic/{topic.replace('://', '/')}")
            lines.append(f"  {name} lists it: {serves}; looks it up at: {found}")
        for number, name in enumerate(cluster.brokers):
            log = [line[:_MOST_CHARACTERS] for line in cluster.log(number) if bundle in line]
            lines += [f"  log of {name}:", *(f"    {line}" for line in log[-_LOG_LINES:])]
    return "\n".join(lines)


def _bundle(cluster: RealPulsar, topic: str) -> str:
    namespace = topic.partition("://")[2].rpartition("/")[0]
    bounds = cluster.json(f"/admin/v2/namespaces/{namespace}/bundles")["boundaries"]
    bundles = [f"{namespace}/{lower}_{upper}" for lower, upper in pairwise(bounds)]
    return next(one for one in bundles if lies_in(topic, one))


def _asked(cluster: RealPulsar, broker: int, path: str) -> Any:
    try:
        return cluster.json(path, broker)
    except (OSError, ValueError) as error:
        return str(error)


pulsar = pytest.importorskip("pulsar", reason="needs pulsar-client: pip install pulsar-client")

pytestmark = marks(900)
NAMESPACE = "trial/ending"
NAMES = [f"persistent://{NAMESPACE}/topic-{number}" for number in range(24)]
# What ends a broker, and whether it is Pulsar's leader. A manager that was chosen sees all of them
# on 4.0.7; otherwise each sees one, because a broker takes its time to be there again.
CASES = [(SIGKILL, True), (SIGTERM, False), (SIGTERM, True), (SIGKILL, False)]
FIRST = {"modular": 0, "extensible": 1}
ALL = VERSION == "4.0.7" and os.environ.get("LOADMANAGER_PULSAR_MANAGER")
COUNT = len(CASES) if ALL else 1


@pytest.fixture(scope="module")
def traffic(cluster: RealPulsar) -> Iterator[Sends]:
    """Send without giving up: messages wait until some broker serves their topic again."""
    cluster.create_namespace(NAMESPACE, 16)
    rates = zipf_rates(NAMES, 600.0, 0.5)
    with sending(pulsar, cluster.service_url, rates, send_timeout_s=0) as sends:
        yield sends


@pytest.mark.parametrize("case", range(COUNT))
def test_the_others_are_balanced_and_so_are_all_when_it_is_back(
    cluster: RealPulsar, traffic: Sends, tmp_path: Path, case: int
) -> None:
    how, leads = CASES[(FIRST[cluster.manager] + case) % len(CASES)]
    cluster.gather(NAMESPACE, NAMES)
    leader = cluster.leader()
    limits = ("--interval", "2", "--settle", "3", "--moves-at-once", "2")
    with unserved_told(cluster, traffic), balancing(cluster, tmp_path, *limits) as (process, told):
        target = first(told, "state", "ordered")["task"]["target"]
        others = sorted({0, 1, 2} - {leader}, key=lambda one: cluster.brokers[one] != target)
        victim = leader if leads else others[0]
        cluster.end(victim, how)
        left = set(cluster.brokers) - {cluster.brokers[victim]}
        try:
            told_until(told, lambda line: shown(line) == left and even(line), since=len(told))
        finally:
            cluster.start(victim)
        told_until(told, lambda line: len(shown(line)) == 3 and even(line), since=len(told))
        process.terminate()
        assert process.wait(60) == 0
        assert ended_tasks(told)
        nothing_moves_on_doubt(told)
        assert traffic.failed == []
        all_are_served(traffic)


def test_settings_are_restored_and_a_term_begins_while_the_named_broker_is_down(
    cluster: RealPulsar, tmp_path: Path
) -> None:
    off = "Pulsar's own shedding and automatic splits are off"
    with balancing(cluster, tmp_path, "--interval", "2") as (process, told):
        first(told, "event", off)
        # Only now are the other brokers known here.
        told_until(told, lambda line: len(shown(line)) == 3)
        process.kill()
        process.wait()
        cluster.end(0, SIGKILL)
        try:
            restored = subprocess.run(
                command(cluster, tmp_path, "--restore"),
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            assert restored.returncode == 0, restored.stderr
            assert all(f"{key}: " in restored.stdout for key in SWITCHES)
            with balancing(cluster, tmp_path, "--interval", "2") as (again, said):
                told_until(said, lambda line: shown(line) == set(cluster.brokers[1:]))
                again.terminate()
                assert again.wait(60) == 0
        finally:
            cluster.start(0)
    assert overridden(cluster) == {}


def shown(line: dict[str, Any]) -> set[str]:
    return {one["broker"] for one in line.get("brokers", ())}


def nothing_moves_on_doubt(told: list[dict[str, Any]]) -> None:
    """Check that orders follow a window of theirs: not held, and with both brokers in it.

    A window is held or has gaps where a broker left since the one before, or came unannounced.
    """
    window: dict[str, Any] = {}
    for line in told:
        if "verdict" in line:
            sure = not (line["held"] or line["missing"])
            if window and sure:
                assert shown(window) <= shown(line), (window, line)
                announced = window["held"] or shown(line) - shown(window) <= set(window["missing"])
                assert announced, (window, line)
            window = line
        elif line.get("task", {}).get("state") == "ordered":
            assert not window["held"], line
            assert {line["task"]["source"], line["task"]["target"]} <= shown(window), line


def all_are_served(sends: Sends) -> None:
    since_s = time.monotonic()
    while min(sends.stored_s.values()) < since_s:
        assert time.monotonic() < since_s + PATIENCE_S, sends.stored_s
        time.sleep(0.2)
