"""A link that really goes down, in a network of the test's own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fault_hosts import WITHIN_S

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]

HOW = (
    "needs a network namespace with links: run as root, or allow users their own "
    "(sysctl kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0), "
    "with util-linux and iproute2 installed"
)


@pytest.fixture
def apart() -> list[str]:
    """Return the command that runs another in a network of its own."""
    if not all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip")):
        pytest.skip(HOW)
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *as_root, "--net"]
    trial = [*command, "ip", "link", "add", "one", "type", "veth", "peer", "name", "other"]
    if subprocess.run(trial, capture_output=True, check=False).returncode:
        pytest.skip(HOW)
    return command


def test_a_host_whose_link_to_zookeeper_goes_down_is_replaced(
    apart: list[str], tmp_path: Path
) -> None:
    script = Path(__file__).with_name("cut_network.py")
    done = subprocess.run(
        [*apart, sys.executable, script, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["violations"] == []
    assert outcome["served_before"] > 0
    assert 0 < outcome["recovery_s"] <= WITHIN_S
