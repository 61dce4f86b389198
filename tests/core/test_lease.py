import pytest

from loadmanager.core.lease import CLOCK_DRIFT_FRACTION, longest_lease_fraction


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
