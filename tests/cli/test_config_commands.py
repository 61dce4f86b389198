from pathlib import Path

import pytest
from click.testing import CliRunner

from loadmanager.cli import main
from loadmanager.config import annotated_toml


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.delenv("LOADMANAGER_BROKER__ID", raising=False)
    return CliRunner()


def test_check_accepts_a_sound_file(runner: CliRunner, tmp_path: Path) -> None:
    settings = '[broker]\nid = "b1:8080"\ncontrol_url = "http://127.0.0.1:8080"\n'
    (tmp_path / "a.toml").write_text(settings)
    result = runner.invoke(main, ["config", "check", "--config", str(tmp_path / "a.toml")])
    assert (result.exit_code, result.output) == (0, "The configuration of b1:8080 is sound.\n")


def test_check_prints_each_fault_and_fails(runner: CliRunner) -> None:
    result = runner.invoke(main, ["config", "check", "--set", "log.level=loud"])
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "[broker] id is not set (in a file, or as LOADMANAGER_BROKER__ID); expected host:port",
        '--set log.level=loud; expected one of "debug", "info", "warning", "error"',
    ]


@pytest.mark.parametrize(
    "sidecar",
    ["listen_host=127.0.0.1", "listen_host=localhost", "advertised_url=http://[::1]:7750"],
)
def test_check_refuses_a_url_that_other_hosts_cannot_reach(runner: CliRunner, sidecar: str) -> None:
    for more in ((), ("--set", "log.level=loud")):
        told = ["config", "check", "--set", "broker.id=b1:8080", "--set", f"sidecar.{sidecar}"]
        result = runner.invoke(main, [*told, *more])
        assert result.exit_code == 1
        assert "[sidecar] advertised_url is http://" in result.stderr
        assert "a loopback address, and broker b1:8080 may be on another host" in result.stderr
        assert ("log.level" in result.stderr) is bool(more)


def test_check_accepts_loopback_throughout(runner: CliRunner) -> None:
    told = ["--set", "broker.id=localhost:8080", "--set", "sidecar.listen_host=127.0.0.1"]
    assert runner.invoke(main, ["config", "check", *told]).exit_code == 0


def test_check_reads_the_environment(runner: CliRunner) -> None:
    result = runner.invoke(main, ["config", "check"], env={"LOADMANAGER_BROKER__ID": "b9:1"})
    assert result.stdout == "The configuration of b9:1 is sound.\n"


def test_check_warns_of_a_broker_that_strangers_can_command(runner: CliRunner) -> None:
    given = ["--set", "broker.id=b1:8080", "--set", "broker.control_url=http://b1:8080"]
    result = runner.invoke(main, ["config", "check", *given])
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: [broker] control_url is 'http://b1:8080' and ")
    shared = ["--set", "broker.control_secret_file=/etc/secret"]
    result = runner.invoke(main, ["config", "check", *given, *shared])
    assert (result.exit_code, result.stderr) == (0, "")


def test_show_defaults_prints_the_annotated_file(runner: CliRunner) -> None:
    result = runner.invoke(main, ["config", "show-defaults"])
    assert (result.exit_code, result.output) == (0, annotated_toml())


def test_check_warns_of_a_lease_longer_than_a_session_surely_lives(runner: CliRunner) -> None:
    given = ["--set", "broker.id=b1:8080", "--set", "ownership.self_fence_fraction=0.8"]
    assert runner.invoke(main, ["config", "check", *given]).stderr == ""
    result = runner.invoke(main, ["config", "check", *given, "--set", "zookeeper.tick_s=0"])
    assert result.exit_code == 0
    assert (
        "[ownership] self_fence_fraction = 0.8 is used as 0.725: servers report a session of 10 s"
        in result.stderr
    )
