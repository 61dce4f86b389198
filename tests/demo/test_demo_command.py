"""The command line of the demo: what it refuses, and what it reads from the brokers' records."""

import re
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadmanager.cli import main
from loadmanager.cli.demo import read_records
from loadmanager.core.ids import BundleId
from loadmanager.demo.figures import Evidence
from loadmanager.reference_broker.changes import (
    BundleLoaded,
    EndReason,
    LeaseGranted,
    RecordFile,
    ServingEnded,
    Started,
)

X = BundleId("public/demo/0x00000000_0x80000000")
Y = BundleId("public/demo/0x80000000_0xffffffff")


def refusal(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["demo", *arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kill", "leader"], "'leader': expected seconds after the @"),
        (["--topics", "8"], "--topics 8: expected at least one a bundle"),
        (["--brokers", "1"], "1 is not in the range 2<=x<=16"),
        (["--duration", "10", "--kill", "1@10"], "--kill 1@10: expected before the end at 10 s"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_started(
    arguments: list[str], message: str
) -> None:
    code, output = refusal(*arguments)
    assert code == 2
    assert message in output


def test_a_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broker-1.record").touch()
    code, output = refusal("--data-dir", str(tmp_path))
    assert code == 2
    assert "expected an empty or a new directory" in output


def test_a_port_in_use_is_told_and_where_the_logs_are(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, output = refusal("--json", "--port-base", str(port), "--data-dir", str(tmp_path))
    assert code == 1
    assert f"--port-base {port}: port {port} is in use; 9 are needed" in output
    assert f"all logs: {tmp_path}" in output


def record(path: Path, broker: str, bundle: BundleId, start_s: float, end_s: float | None) -> Path:
    file = RecordFile(path)
    file.write(Started(at_s=0.0, broker=broker, incarnation=broker))
    file.write(LeaseGranted(at_s=0.0, agent_epoch=1, until_s=100.0))
    file.write(BundleLoaded(at_s=start_s, bundle=bundle, fencing_token=1, agent_epoch=1))
    if end_s is not None:
        ended = ServingEnded(
            at_s=end_s,
            bundle=bundle,
            fencing_token=1,
            agent_epoch=1,
            start_s=start_s,
            end_s=end_s,
            why=EndReason.UNLOADED,
        )
        file.write(ended)
    file.close()
    return path


def test_bundles_served_by_two_brokers_at_once_are_counted(tmp_path: Path) -> None:
    first = record(tmp_path / "1", "b1:80", X, 1.0, 5.0)
    overlapping = record(tmp_path / "2", "b2:80", X, 4.9, 9.0)
    following = record(tmp_path / "3", "b3:80", X, 5.0, 9.0)
    other = record(tmp_path / "4", "b4:80", Y, 1.0, 5.0)
    assert read_records({first: None, overlapping: None}) == Evidence(1, 1)
    assert read_records({first: None, following: None}) == Evidence(1, 0)
    assert read_records({first: None, other: None}) == Evidence(2, 0)


def test_a_killed_broker_counts_as_serving_until_it_was_dead(tmp_path: Path) -> None:
    killed = record(tmp_path / "1", "b1:80", X, 1.0, None)
    heir = record(tmp_path / "2", "b2:80", X, 8.0, 9.0)
    assert read_records({killed: 7.0, heir: None}) == Evidence(1, 0)
    assert read_records({killed: 8.5, heir: None}) == Evidence(1, 1)


def test_help_shows_an_example() -> None:
    result = CliRunner().invoke(main, ["demo", "--help"])
    assert re.search(r"Example: loadmanager demo --kill", result.output)
