"""Tokens of the cluster's key, and what is said where tokens come from elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import jwt
import pytest
from click.testing import CliRunner, Result
from coordination_worlds import connected

from loadmanager.adapters.zookeeper import ZooKeeperCoordination, ZooKeeperOptions
from loadmanager.adapters.zookeeper.embedded import EmbeddedZooKeeper
from loadmanager.cli import main
from loadmanager.core import znodes
from loadmanager.demo.children import free_ports


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
            digest_password="known to sidecars",  # noqa: S106 - of this test alone
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
