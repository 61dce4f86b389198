"""What all tests share: their order, that CI skips none, and one ZooKeeper."""

import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from loadmanager.adapters.zookeeper.embedded import EmbeddedZooKeeper
from loadmanager.adapters.zookeeper.java import EmbeddedZooKeeperError, find_java

# A busy machine makes an example slow, not wrong.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")

SUITES_BY_COST = (
    "thorough",
    "zookeeper",
    "processes",
    "helm",
    "admin_client",
    "pulsar",
    "docker",
    "spark",
    "simulated",
    "faults",
    "browser",
    "bench",
)
"""Markers, cheapest first; a test without one is cheaper than all of them."""

_NOTHING_MAY_BE_SKIPPED = os.environ.get("LOADMANAGER_REQUIRE_ALL") == "1"


def _cost(item: pytest.Item) -> int:
    """Return the place of the item's dearest suite, 0 for a quick test."""
    places = (
        place for place, suite in enumerate(SUITES_BY_COST, 1) if item.get_closest_marker(suite)
    )
    return max(places, default=0)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the cheap tests first: a simple mistake shows within seconds."""
    items.sort(key=_cost)


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a skip a failure where everything a suite needs has to be present."""
    if _NOTHING_MAY_BE_SKIPPED and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"LOADMANAGER_REQUIRE_ALL=1, yet this skips: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Refuse a test's or a fixture's skip."""
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Refuse the skip of a whole module."""
    report = yield
    _refuse_skip(report)
    return report


@pytest.fixture(scope="session")
def zookeeper_address() -> Iterator[str]:
    """Return ``host:port`` of a real ZooKeeper that all tests share; each uses its own chroot.

    Its tick is 200 ms, so that it grants sessions of 0.4 s and more. Another server, such
    as one in a container, is taken where LOADMANAGER_TEST_ZOOKEEPER names it.
    """
    if elsewhere := os.environ.get("LOADMANAGER_TEST_ZOOKEEPER"):
        yield elsewhere
        return
    try:
        find_java()
    except EmbeddedZooKeeperError as error:
        pytest.skip(str(error))
    with EmbeddedZooKeeper(tick_ms=200) as server:
        yield server.address
