"""What several tests of commands are given."""

from pathlib import Path

import pytest
from simulate_command import written


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return written(tmp_path / "two.toml")
