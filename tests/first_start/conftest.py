import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def project() -> Path:
    return PROJECT


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program folder of a fresh environment, filled by the page's own command.

    The hosts have no way to a package index, and they share this machine's files.
    """
    folder = tmp_path_factory.mktemp("installed")
    # Some distributions' Python comes without ensurepip.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "pip"], check=True)
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    page = (PROJECT / "docs" / "index.md").read_text(encoding="utf-8")
    _, _, following = page.partition("<!-- on=clone -->\n```sh\n")
    command = following.partition("```")[0]
    assert command
    subprocess.run(["sh", "-euc", command], cwd=PROJECT, env=environment, check=True)
    assert (folder / "bin" / "loadmanager").exists()
    return folder / "bin"
