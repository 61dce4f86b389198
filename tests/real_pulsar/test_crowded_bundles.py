"""`loadmanager attach --balance` moves bundles that many real clients use at once."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from attaching import PATIENCE_S, balancing, ended_tasks, even, told_until
from pulsar_traffic import sending, zipf_rates
from real_pulsar import RealPulsar, lies_in, marks

pulsar = pytest.importorskip("pulsar", reason="needs pulsar-client: pip install pulsar-client")

pytestmark = marks(600)
NAMESPACE = "trial/crowd"
NAMES = [f"persistent://{NAMESPACE}/topic-{number}" for number in range(60)]
CLIENTS = 3


@contextmanager
def consuming(service_url: str) -> Iterator[dict[str, int]]:
    """Consume all topics until the end of the block; yields how many messages came of each."""
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(NAMES, "all")
    received, over = dict.fromkeys(NAMES, 0), threading.Event()

    def receive() -> None:
        while not over.is_set():
            try:
                message: Any = consumer.receive(timeout_millis=200)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            received[message.topic_name()] += 1

    thread = threading.Thread(target=receive)
    thread.start()
    try:
        yield received
    finally:
        over.set()
        thread.join()
        client.close()


def test_bundles_of_many_topics_and_clients_land(cluster: RealPulsar, tmp_path: Path) -> None:
    cluster.create_namespace(NAMESPACE, 2)
    with ExitStack() as stack:
        rates = zipf_rates(NAMES, 160.0, 0.0)
        received = stack.enter_context(consuming(cluster.service_url))
        sends = [
            stack.enter_context(sending(pulsar, cluster.service_url, rates)) for _ in range(CLIENTS)
        ]
        cluster.gather(NAMESPACE, NAMES)
        process, told = stack.enter_context(balancing(cluster, tmp_path, "--interval", "5"))
        told_until(told, lambda line: even(line, at_most=1.8))
        before = dict(received)
        told_until(told, lambda line: line.get("whole", False), since=len(told))
        deadline_s = time.monotonic() + PATIENCE_S
        while silent := [name for name in NAMES if received[name] <= before[name]]:
            assert time.monotonic() < deadline_s, silent
            time.sleep(0.2)
        process.terminate()
        assert process.wait(60) == 0
    # Idle bundles of other tests' namespaces are spread by count, within budgets.
    ended = [one for one in ended_tasks(told) if one["bundle"].startswith(f"{NAMESPACE}/")]
    assert {one["state"] for one in ended} == {"serving"}
    assert all(sum(lies_in(name, one["bundle"]) for name in NAMES) >= 20 for one in ended)
    assert [one.failed for one in sends] == [[]] * CLIENTS
