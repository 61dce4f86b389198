"""What `loadmanager attach --metrics-port` shows."""

import math
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attach_process import LIMIT_S, attached
from click.testing import CliRunner
from fake_pulsar import FakePulsar
from prometheus_client.parser import text_string_to_metric_families

from loadmanager.attach.pulsar_balancer import SHEDDING
from loadmanager.cli import main


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


@contextmanager
def measured(pulsar: FakePulsar, folder: Path, port: int, *more: str) -> Iterator[None]:
    options = ["--pulsar", pulsar.url, "--json", "--interval", "1", "--state-dir", str(folder)]
    with attached(*options, "--metrics-port", str(port), *more) as process:
        yield
        process.terminate()
        process.wait()


def figures(port: int) -> dict[str, float]:
    """Return what is served by name, tasks by state; nothing while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return {}
    return {
        sample.labels.get("state", sample.name.removeprefix("loadmanager_attach_")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def until(port: int, **wanted: float) -> dict[str, float]:
    """Wait for figures, and return all."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        found = figures(port)
        if found and all(found[name] == value for name, value in wanted.items()):
            return found
        assert time.monotonic() < deadline_s, (wanted, found)
        time.sleep(0.05)


def test_a_watcher_shows_whether_pulsar_balances_itself(pulsar: FakePulsar, tmp_path: Path) -> None:
    port = free_port()
    with measured(pulsar, tmp_path, port):
        found = until(port, pulsar_shedding=1, balancing=0, brokers=3, brokers_missing=0)
        assert math.isclose(found["max_over_mean"], 3.0)
        assert math.isclose(found["least_max_over_mean"], 9 / 8)
        pulsar.dynamic[SHEDDING] = "false"
        until(port, pulsar_shedding=0, balancing=0)


def test_a_controller_shows_that_it_balances_and_what_it_did(
    pulsar: FakePulsar, tmp_path: Path
) -> None:
    port = free_port()
    with measured(pulsar, tmp_path, port, "--balance"):
        until(port, pulsar_shedding=0, balancing=1, held=0, serving=5, failed=0)


def test_a_port_that_is_taken_is_named(pulsar: FakePulsar) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        command = ["attach", "--pulsar", pulsar.url, "--once", "--metrics-port", str(port)]
        found = CliRunner().invoke(main, command)
    assert found.exit_code == 1
    assert f"--metrics-port {port}: " in found.stderr
    assert "expected a free port" in found.stderr
