import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
SAMPLE = """
import pytest

@pytest.fixture
def docker():
    pytest.skip("needs Docker: install it")

@pytest.mark.docker
def test_docker(docker): pass

@pytest.mark.zookeeper
@pytest.mark.processes
def test_processes(): pass

@pytest.mark.zookeeper
def test_zookeeper(): pass

def test_quick(): pass

@pytest.mark.xfail
def test_known(): assert False
"""


@pytest.fixture
def suite(project: Path, tmp_path: Path) -> Path:
    shutil.copy(project / "tests" / "conftest.py", tmp_path)
    shutil.copy(project / "pyproject.toml", tmp_path)
    (tmp_path / "test_sample.py").write_text(SAMPLE, encoding="utf-8")
    return tmp_path


def outcome(folder: Path, *, require_all: str) -> tuple[int, str]:
    environment = {key: text for key, text in os.environ.items() if "XDIST" not in key}
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-ra", "-m", "not bench", str(folder)],
        cwd=folder,
        env={**environment, "LOADMANAGER_REQUIRE_ALL": require_all},
        capture_output=True,
        text=True,
        check=False,
    )
    return finished.returncode, finished.stdout


def test_an_absent_tool_skips_its_suite_and_fails_where_all_must_run(suite: Path) -> None:
    code, said = outcome(suite, require_all="")
    assert (code, "needs Docker: install it" in said) == (0, True)
    assert "3 passed, 1 skipped, 1 xfailed" in said.splitlines()[-1]
    code, said = outcome(suite, require_all="1")
    assert code == 1
    assert "3 passed, 1 xfailed, 1 error" in said.splitlines()[-1]
    (suite / "test_module.py").write_text(
        "import pytest\npytest.skip('needs Spark', allow_module_level=True)\n", encoding="utf-8"
    )
    assert outcome(suite, require_all="1")[0] == 2
