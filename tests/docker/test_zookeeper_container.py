import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from testcontainers.core.container import DockerContainer

from loadmanager.demo.children import free_ports

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]


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
