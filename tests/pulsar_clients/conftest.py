"""What the tests with real Pulsar clients share."""

from typing import Any

import pytest


@pytest.fixture
def pulsar() -> Any:
    """Return Pulsar's client package; without it these tests are skipped."""
    return pytest.importorskip("pulsar", reason="pulsar-client has no wheel for this platform")


@pytest.fixture
def quiet(pulsar: Any) -> Any:
    """Return a logger for clients that tells only what went wrong."""
    return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
