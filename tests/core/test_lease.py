import pytest

from loadmanager.core.lease import (
    CLOCK_DRIFT_FRACTION,
    Heartbeats,
    latest_end_s,
    longest_lease_fraction,
    report_interval_s,
)


@pytest.mark.parametrize("timeout_s", [4.0, 10.0, 40.0])
def test_a_lease_is_over_half_a_tick_before_the_timeout_on_a_slow_clock(timeout_s: float) -> None:
    longest = longest_lease_fraction(timeout_s, 2.0)
    over_s = longest * timeout_s * (1 + CLOCK_DRIFT_FRACTION)
    assert over_s < timeout_s - 1.0
    assert over_s > timeout_s - 1.0 - 0.02 * timeout_s


def test_an_unknown_tick_counts_as_half_of_the_session() -> None:
    longest = longest_lease_fraction(10.0, 0.0)
    assert longest * (1 + CLOCK_DRIFT_FRACTION) == pytest.approx(0.74)
    assert longest == longest_lease_fraction(10.0, 5.0)


def test_the_usual_configuration_needs_no_shorter_lease() -> None:
    assert longest_lease_fraction(10.0, 2.0) > 0.66
    assert longest_lease_fraction(4.0, 2.0) > 0.66
    assert longest_lease_fraction(4.0, 0.0) > 0.66


def test_a_tick_of_two_sessions_leaves_no_lease() -> None:
    assert longest_lease_fraction(4.0, 8.0) < 0


def test_a_report_comes_within_a_little_more_than_half_a_tick() -> None:
    assert report_interval_s(10.0, 2.0) == pytest.approx(1.1)
    assert report_interval_s(10.0, 0.0) == pytest.approx(2.6)


def test_a_lease_ends_before_a_timeout_from_what_the_leader_knows() -> None:
    over_s = 5.0 + (latest_end_s(5.0, 10.0) - 5.0) * (1 + CLOCK_DRIFT_FRACTION)
    assert over_s == pytest.approx(14.9)


def test_a_heartbeat_counts_when_one_was_answered_that_was_sent_a_report_later() -> None:
    heartbeats = Heartbeats(2.0)
    assert heartbeats.known_since_s(10.0, 10.5, 1.0) == 2.0
    assert heartbeats.known_since_s(11.4, 11.4, 1.0) == 2.0
    assert heartbeats.known_since_s(11.5, 11.5, 1.0) == 10.0
    assert heartbeats.known_since_s(12.4, 12.4, 1.0) == 11.4
    assert heartbeats.known_since_s(30.0, 30.0, 1.0) == 12.4


def test_regular_heartbeats_leave_the_usual_lease_as_it_is() -> None:
    for timeout_s, tick_s in ((10.0, 2.0), (4.0, 2.0), (4.0, 0.5), (30.0, 2.0)):
        heartbeats, interval_s = Heartbeats(0.0), report_interval_s(timeout_s, tick_s)
        for number in range(1, 50):
            sent_s = number * 0.1 * timeout_s
            known_since_s = heartbeats.known_since_s(sent_s, sent_s + 0.002, interval_s)
            assert latest_end_s(known_since_s, timeout_s) > sent_s + 0.66 * timeout_s
