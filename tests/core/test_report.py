from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BrokerUrls, BundleStats, LoadReport, ResourceUsage
from loadmanager.core.report import Due, Published, ReportRules, due

BUNDLE = BundleId("t/n/0x00000000_0xffffffff")
RULES = ReportRules()
REPORT = LoadReport(
    broker=BrokerId("a:1"),
    urls=BrokerUrls(http_url="http://a:1"),
    sidecar_url="http://a:2",
    reported_at_ms=0,
    started_at_ms=0,
    cpu=ResourceUsage(400.0, 800.0),
    memory=ResourceUsage(20.0, 100.0),
    bandwidth_out=ResourceUsage(150.0, 1000.0),
    bundles={BUNDLE: BundleStats(msgs_in_per_s=1000.0, bytes_in_per_s=1e6)},
)
LAST = Published(REPORT, 100.0)


def carrying(msgs: float, size: float) -> LoadReport:
    return replace(REPORT, bundles={BUNDLE: BundleStats(msgs_in_per_s=msgs, bytes_in_per_s=size)})


def test_a_first_report_a_forced_one_and_a_drain_are_told_at_once() -> None:
    assert due(RULES, None, REPORT, 0.0, 0.0) is Due.FIRST
    assert due(RULES, LAST, REPORT, 100.0, 0.0, forced=True) is Due.FORCED
    assert due(RULES, LAST, replace(REPORT, draining=True), 100.1, 0.0) is Due.REGISTRATION


@pytest.mark.parametrize(
    ("current", "reason"),
    [
        (REPORT, None),
        (replace(REPORT, bundles={}), Due.BUNDLES),
        (replace(REPORT, cpu=ResourceUsage(560.0, 800.0)), Due.USAGE),
        (replace(REPORT, bandwidth_in=ResourceUsage(0.0, 1e6)), Due.USAGE),
        (replace(REPORT, cpu=None), Due.USAGE),
        (replace(REPORT, cpu=ResourceUsage(470.0, 800.0)), None),
        (replace(REPORT, bandwidth_out=ResourceUsage(260.0, 1000.0)), Due.USAGE),
        (replace(REPORT, bandwidth_out=ResourceUsage(240.0, 1000.0)), None),
        (replace(REPORT, memory=ResourceUsage(35.0, 100.0)), Due.USAGE),
        (replace(REPORT, memory=ResourceUsage(25.0, 100.0)), None),
        (carrying(1101.0, 1e6), Due.MSG_RATE),
        (carrying(1100.0, 1e6), None),
        (carrying(1000.0, 1.2e6), Due.THROUGHPUT),
    ],
)
def test_a_change_worth_telling_is_due_after_the_shortest_time(
    current: LoadReport, reason: Due | None
) -> None:
    assert due(RULES, LAST, current, 104.9, 0.0) is None
    assert due(RULES, LAST, current, 105.0, 0.0) is reason


def test_an_idle_broker_whose_trickle_multiplies_stays_silent() -> None:
    last = Published(carrying(0.1, 50.0), 0.0)
    assert due(RULES, last, carrying(33.0, 16_000.0), 30.0, 0.0) is None


@given(st.floats(0.0, 1.0), st.floats(0.0, 200.0))
def test_an_unchanged_report_is_renewed_within_its_longest_time(jitter: float, age: float) -> None:
    reason = due(RULES, LAST, REPORT, 100.0 + age, jitter)
    assert reason in {None, Due.AGE}
    if age >= 60.0 + 1e-6:
        assert reason is Due.AGE
    if age < 48.0 - 1e-6:
        assert reason is None
