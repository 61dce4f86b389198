"""What all tests share: their order and suites, that CI skips none, and one ZooKeeper."""

import os
import re
from collections import defaultdict
from collections.abc import Container, Generator, Iterator
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from loadmanager.adapters.zookeeper.embedded import (
    EmbeddedZooKeeper,
    EmbeddedZooKeeperError,
    find_java,
)

# A busy machine makes an example slow, not wrong.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")

SUITES_BY_COST = (
    "thorough",
    "zookeeper",
    "processes",
    "helm",
    "admin_client",
    "browser",
    "simulated",
    "spark",
    "faults",
    "docker",
    "pulsar",
    "bench",
)
"""Markers, cheapest first; a test without one is cheaper than all of them."""

_NOTHING_MAY_BE_SKIPPED = os.environ.get("LOADMANAGER_REQUIRE_ALL") == "1"


OF_ONE_WORKER = ("docker", "first_start", "helm", "real_pulsar", "spark")
"""Folders whose tests share what takes long to start; of the others, each file is one worker's."""

TOOLS = frozenset(("pandas", "playwright", "plotly", "pyarrow", "schemathesis", "scipy", "sphinx"))
"""Packages that only `make test-tools` installs."""


def _suite(keywords: Container[str]) -> str:
    """Return the dearest suite among a test's keywords, "quick" if it has none."""
    found = (suite for suite in reversed(SUITES_BY_COST) if suite in keywords)
    return next(found, "quick")


def _cost(item: pytest.Item) -> int:
    suite = _suite(item.keywords)
    return 0 if suite == "quick" else SUITES_BY_COST.index(suite) + 1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the cheap tests first: a simple mistake shows within seconds.

    Several workers begin with the dear ones, most of which wait, and fill up with the cheap ones.
    """
    items.sort(key=_cost, reverse="PYTEST_XDIST_WORKER" in os.environ)


class ByServer(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives a worker whole files, or a whole folder whose tests share a server."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        folder = file.split("/")[1] if file.count("/") > 1 else ""
        return folder if folder in OF_ONE_WORKER else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return 3 for `pytest` alone; 0, this process, where tests, markers, -s or --trace are named.

    -n is as pytest-xdist has it, and --pdb needs this process, too.
    """
    asked = config.option
    alone = config.args_source is not config.ArgsSource.ARGS
    quick = asked.markexpr in config.getini("addopts")
    return 3 if alone and quick and asked.capture != "no" and not asked.trace else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByServer:
    """Name the scheduler of several workers."""
    return ByServer(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what each suite took, added up over all workers."""
    took_s: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                took_s[_suite(report.keywords)] += report.duration
    if len(took_s) > 1:
        terminalreporter.section("seconds of each suite")
        for suite, seconds in sorted(took_s.items(), key=lambda item: -item[1]):
            terminalreporter.write_line(f"{seconds:7.0f}  {suite}")


def _missing_tool(error: str) -> str | None:
    """Return the absent package of the tools that an error or a message of the product names."""
    named = re.findall(
        r"No module named '(\w+)|No package metadata was found for (\w+)"
        r"|needs its extra \((\w+)|needs (\w+), which",
        error,
    )
    absent = (name for names in named for name in names if name in TOOLS and not find_spec(name))
    return next(absent, None)


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a skip a failure where everything a suite needs has to be present."""
    if _NOTHING_MAY_BE_SKIPPED and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"LOADMANAGER_REQUIRE_ALL=1, yet this skips: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that needs a package of the tools, and refuse a test's or a fixture's skip."""
    report = yield
    if report.failed and (missing := _missing_tool(str(report.longrepr))):
        report.outcome = "skipped"
        report.longrepr = (str(report.fspath), 0, f"Skipped: needs {missing}: make test-tools")
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a module that needs a package of the tools, and refuse the skip of a whole module."""
    report = yield
    if report.failed and (missing := _missing_tool(str(report.longrepr))):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: needs {missing}: make test-tools")
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
