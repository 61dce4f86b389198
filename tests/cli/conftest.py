"""What several tests of commands are given."""

from pathlib import Path

import pytest
from simulate_command import written


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """Return the file of a small scenario in which one of two brokers has everything."""
    return written(tmp_path / "two.toml")
