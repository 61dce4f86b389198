"""What the traffic generator counts."""

import pytest

from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId
from loadmanager.demo.client import TrafficCounts, TrafficReport

A, B = BundleId("t/n/0x00000000_0x80000000"), BundleId("t/n/0x80000000_0xffffffff")


def test_a_report_tells_the_slowest_message_of_each_bundle_once() -> None:
    counts = TrafficCounts(waiting=4)
    counts.ended(A, 0.7, accepted=True)
    counts.ended(A, 3.0, accepted=True)
    counts.ended(B, 0.1, accepted=True)
    counts.ended(B, 30.0, accepted=False)
    assert counts.report("progress", 5.0) == TrafficReport(
        kind="progress",
        at_s=5.0,
        published=3,
        publish_errors=1,
        waiting=0,
        slowest_s={A: 3.0, B: 30.0},
    )
    assert counts.report("progress", 6.0).slowest_s == {}


def test_a_report_survives_its_line() -> None:
    report = TrafficReport(
        kind="final", at_s=1.5, lookups=3, slowest_s={A: 2.0}, last_lookup_error="é"
    )
    assert TrafficReport.from_line(report.to_line()) == report


@pytest.mark.parametrize("line", ["", "[]", "{", '{"kind": "final"}', '{"cow": 1}'])
def test_a_line_that_is_no_report_is_refused(line: str) -> None:
    with pytest.raises(MalformedContent, match="traffic generator"):
        TrafficReport.from_line(line)
