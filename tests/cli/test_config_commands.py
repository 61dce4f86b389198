import os
import subprocess
import sys
from pathlib import Path

import jwt
import pytest
from click.testing import CliRunner, Result
from coordination_worlds import connected
from pydantic import SecretStr

from loadmanager.adapters.zookeeper import ZooKeeperCoordination, ZooKeeperOptions
from loadmanager.adapters.zookeeper.embedded import EmbeddedZooKeeper
from loadmanager.cli import main
from loadmanager.config import annotated_toml
from loadmanager.core import znodes
from loadmanager.demo.cluster import free_ports


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.delenv("LOADMANAGER_BROKER__ID", raising=False)
    return CliRunner()


def test_check_accepts_what_is_sound_of_files_options_and_the_environment(
    runner: CliRunner, tmp_path: Path
) -> None:
    settings = '[broker]\nid = "b1:8080"\ncontrol_url = "http://127.0.0.1:8080"\n'
    (tmp_path / "a.toml").write_text(settings)
    # Loopback throughout is fine.
    local = ("--set", "broker.id=localhost:8080", "--set", "sidecar.listen_host=127.0.0.1")
    for options, environ, broker in (
        (("--config", str(tmp_path / "a.toml")), {}, "b1:8080"),
        (local, {}, "localhost:8080"),
        ((), {"LOADMANAGER_BROKER__ID": "b9:1"}, "b9:1"),
    ):
        result = runner.invoke(main, ["config", "check", *options], env=environ)
        assert result.exit_code == 0
        assert result.stdout == f"The configuration of {broker} is sound.\n"


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


def said(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["token", *arguments])


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ('token_secret_key_file = "/s"', "--secret-key file:///s --subject NAME"),
        ('token_public_key_file = "/p"', "the private key that belongs to /p"),
        ('anonymous = "read"', "names no key"),
    ],
)
def test_with_security_it_says_whence_tokens_are(section: str, named: str, tmp_path: Path) -> None:
    file = tmp_path / "loadmanager.toml"
    file.write_text(f"[security]\n{section}\n")
    result = said("--right", "read", "--config", str(file))
    assert result.exit_code == 2
    assert named in " ".join(result.stderr.split())
    assert result.stdout == ""


def test_a_wrong_configuration_is_told() -> None:
    result = said("--right", "read", "--set", "zookeeper.hosts=nowhere")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "zookeeper.hosts=nowhere" in result.stderr


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, "-m", "loadmanager", "token", *arguments),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_zookeeper_that_does_not_answer_is_told() -> None:
    (port,) = free_ports(1)
    result = run("--right", "read", "--zookeeper", f"127.0.0.1:{port}", "--timeout", "0.5")
    assert (result.returncode, result.stdout) == (1, "")
    assert f"ZooKeeper at 127.0.0.1:{port}: no session within 0.5 s" in result.stderr


@pytest.mark.zookeeper
async def test_a_token_can_be_made_before_the_first_sidecar_runs(tmp_path: Path) -> None:
    with EmbeddedZooKeeper() as server:
        # As in deploy/compose: the file says nothing of any one broker.
        file = tmp_path / "loadmanager.toml"
        file.write_text(
            f'[zookeeper]\nhosts = "{server.address}"\ndigest_user = "lm"\ncreator_only = false\n'
            '[cluster]\nname = "east"\n[host]\nscope = "process"\n'
        )
        secret = {"LOADMANAGER_ZOOKEEPER__DIGEST_PASSWORD": "known to sidecars"}
        made = run(
            *("--right", "admin", "--days", "2", "--name", "operator", "--config", str(file)),
            **secret,
        )
        assert (made.returncode, made.stderr) == (0, "")
        options = ZooKeeperOptions(
            hosts=server.address,
            chroot="/loadmanager/east",
            digest_user="lm",
            digest_password=SecretStr("known to sidecars"),
        )
        known = await connected(ZooKeeperCoordination(options))
        try:
            node = await known.get(znodes.KEY)
            assert node is not None
            assert len(node.data) == 32
            claims = jwt.decode(made.stdout.strip(), node.data, ["HS256"])
            assert (claims["sub"], claims["right"]) == ("operator", "admin")
            assert claims["exp"] - claims["iat"] == 2 * 86_400
            again = run("--right", "read", "--config", str(file), **secret)
            assert jwt.decode(again.stdout.strip(), node.data, ["HS256"])["sub"] == "read"
            # The key is its maker's alone, though other nodes are open to everybody.
            refused = run(
                "--right", "read", "--zookeeper", server.address, "--set", "cluster.name=east"
            )
            assert (refused.returncode, refused.stdout) == (1, "")
            assert znodes.KEY in refused.stderr
            replaced = run("--right", "read", "--replace-key", "--config", str(file), **secret)
            after = await known.get(znodes.KEY)
            assert after is not None
            assert after.data != node.data
            assert jwt.decode(replaced.stdout.strip(), after.data, ["HS256"])["right"] == "read"
        finally:
            await known.close()
