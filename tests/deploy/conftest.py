from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def project() -> Path:
    return Path(__file__).parents[2]
