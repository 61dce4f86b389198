import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
PROJECT = Path(__file__).parents[2]
IMAGE = "loadmanager-under-test"
VERSION = "7.8.9"
"""The images are built for it; no file of the project names it."""
BUILD = ("deploy/build-image", "--network", "host")
PUBLIC_IMAGES = {
    "PYTHON_IMAGE": "python:3.12-slim",
    "ZOOKEEPER_IMAGE": "zookeeper:3.9",
    "PROMETHEUS_IMAGE": "prom/prometheus",
}
"""What docker-compose.yml and the Dockerfile build on, by the variable that names another one."""


def run(*command: str) -> str:
    finished = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
    return finished.stdout.strip()


def _works(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="session")
def docker() -> Callable[..., str]:
    if not _works("docker", "info"):
        pytest.skip("needs Docker: install it, start its daemon, and let this user reach it")
    return lambda *arguments: run("docker", *arguments)


def present(variable: str) -> str:
    name = os.environ.get(variable) or PUBLIC_IMAGES[variable]
    if not _works("docker", "image", "inspect", name) and not _works("docker", "pull", name):
        pytest.skip(f"needs the image {name}: pull it, or name another in {variable}")
    return name


def built(extras: str = "") -> str:
    """Return the name of an image built from the present sources by what `make image` calls."""
    name = f"{IMAGE}-{extras}" if extras else IMAGE
    given = {"IMAGE": name, "EXTRAS": extras, "LOADMANAGER_VERSION": VERSION}
    given["PYTHON_IMAGE"] = present("PYTHON_IMAGE")
    run("env", *(f"{key}={value}" for key, value in given.items()), *BUILD)
    return name


@pytest.fixture(scope="session")
def image(docker: Callable[..., str]) -> str:  # noqa: ARG001 - skips without Docker
    return built()


@pytest.fixture(scope="session")
def pipeline_image(docker: Callable[..., str]) -> str:  # noqa: ARG001 - skips without Docker
    return built("pipeline")


@pytest.fixture(scope="session")
def zookeeper_image(docker: Callable[..., str]) -> str:  # noqa: ARG001 - skips without Docker
    return present("ZOOKEEPER_IMAGE")


@pytest.fixture(scope="session")
def prometheus_image(docker: Callable[..., str]) -> str:  # noqa: ARG001 - skips without Docker
    return present("PROMETHEUS_IMAGE")


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Any]:
    def wait(what: str, look: Callable[[], T], *, within_s: float) -> T:
        deadline_s = time.monotonic() + within_s
        while not (seen := look()):
            if time.monotonic() > deadline_s:
                pytest.fail(f"not within {within_s:g} s: {what}; last seen: {seen!r}")
            time.sleep(0.25)
        return seen

    return wait
