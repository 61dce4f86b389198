"""What readers, compaction and buffered pages of real brokers make of a topic's counters."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attaching import command, observing, told_until
from pulsar_traffic import sending
from real_pulsar import CHOSEN, RealPulsar, marks, trial_cluster

pulsar = pytest.importorskip("pulsar", reason="needs pulsar-client: pip install pulsar-client")

pytestmark = marks(900)
NAMESPACE = "trial/counted"
NAMES = [f"persistent://{NAMESPACE}/topic-{number}" for number in range(12)]
PER_TOPIC_S = 20.0
EARLIER = 20_000


@contextmanager
def client_of(cluster: RealPulsar) -> Iterator[Any]:
    client = pulsar.Client(
        cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        yield client
    finally:
        client.close()


def read_from_earliest(client: Any) -> None:
    reader = client.create_reader(NAMES[0], pulsar.MessageId.earliest)
    for _ in range(EARLIER):
        reader.read_next(timeout_millis=30_000)
    reader.close()


def delete_read_subscription(cluster: RealPulsar, client: Any) -> None:
    consumer = client.subscribe(NAMES[0], "audit", initial_position=pulsar.InitialPosition.Earliest)
    for _ in range(EARLIER):
        consumer.receive(timeout_millis=30_000)
    consumer.close()
    path = f"/admin/v2/persistent/{NAMESPACE}/topic-0/subscription/audit"
    assert cluster.put(path, method="DELETE") == 204


def compact(cluster: RealPulsar, times: int) -> None:
    for _ in range(times):
        for name in NAMES[:6]:
            local = name.rpartition("/")[2]
            # 409 while the last one still runs.
            path = f"/admin/v2/persistent/{NAMESPACE}/{local}/compaction"
            assert cluster.put(path) in {204, 409}
        time.sleep(2)


def test_what_ends_or_is_pulsars_own_moves_nothing(cluster: RealPulsar, tmp_path: Path) -> None:
    """A Reader from the earliest, a deleted subscription and compaction leave all rates alone."""
    cluster.create_namespace(NAMESPACE, 12)
    sent = PER_TOPIC_S * len(NAMES)
    with client_of(cluster) as client:
        producer = client.create_producer(NAMES[0], block_if_queue_full=True)
        for number in range(EARLIER):
            producer.send_async(b"x" * 100, lambda *_: None, partition_key=f"{number % 50}")
        producer.flush()
        with (
            sending(pulsar, cluster.service_url, dict.fromkeys(NAMES, PER_TOPIC_S)),
            observing(cluster, tmp_path, "--interval", "3") as told,
        ):
            calm = told_until(told, lambda line: steady(line, sent))
            for disturb in (
                lambda: read_from_earliest(client),
                lambda: delete_read_subscription(cluster, client),
                lambda: compact(cluster, times=5),
            ):
                windows = windows_around(told, disturb)
                rates = [sum(one["msgsInPerS"] for one in line["brokers"]) for line in windows]
                assert max(rates) <= 1.5 * sent, rates
                fullest = [line["maxOverMean"] for line in windows]
                assert max(fullest) <= calm["maxOverMean"] + 0.25, fullest


def steady(line: dict[str, Any], sent: float) -> bool:
    rate = sum(one["msgsInPerS"] for one in line.get("brokers", ()))
    return bool(line.get("whole")) and rate == pytest.approx(sent, rel=0.2)


def windows_around(told: list[dict[str, Any]], disturb: Callable[[], None]) -> list[dict[str, Any]]:
    """Return the windows from before the disturbance to the third after it."""
    since = len(told)
    disturb()
    for _ in range(3):
        until = len(told)
        told_until(told, lambda line: "verdict" in line, since=until)
    return [line for line in told[since:] if "verdict" in line]


@pytest.fixture(scope="module", params=CHOSEN)
def buffered(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealPulsar]:
    """Two brokers that serve a page of metrics for a minute."""
    folder, settings = tmp_path_factory.mktemp("buffered"), {"metricsBufferResponse": "true"}
    with trial_cluster(folder, request.param, brokers=2, settings=settings) as made:
        yield made


def test_pages_that_stand_still_are_no_idle_windows(buffered: RealPulsar, tmp_path: Path) -> None:
    buffered.create_namespace(NAMESPACE, 12)
    sent = PER_TOPIC_S * len(NAMES)
    with (
        sending(pulsar, buffered.service_url, dict.fromkeys(NAMES, PER_TOPIC_S)),
        observing(buffered, tmp_path, "--interval", "5") as told,
    ):
        for _ in range(3):
            since = len(told)
            told_until(told, lambda line: steady(line, sent), since=since)
    whole = [line for line in told if line.get("whole")]
    rates = [sum(one["msgsInPerS"] for one in line["brokers"]) for line in whole]
    assert rates == pytest.approx([sent] * len(rates), rel=0.3)
    doctor = subprocess.run(
        [one for one in command(buffered, tmp_path, "--doctor") if one != "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    # 2.10 has no such setting.
    set_so = buffered.json("/admin/v2/brokers/configuration/runtime").get("metricsBufferResponse")
    assert ("metricsBufferResponse" in doctor.stdout) == (set_so == "true")
