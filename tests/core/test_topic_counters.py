from loadmanager.core.bundle_traffic import Counters, between

TOPIC, OTHER = "persistent://t/n/a", "persistent://t/n/b"


def test_rates_are_differences_over_the_window() -> None:
    window = between(
        {TOPIC: Counters(100, 200, 1_000, 2_000)}, {TOPIC: Counters(150, 220, 6_000, 2_000)}, 5.0
    )
    rates = window.rates[TOPIC]
    assert (rates.msgs_in_per_s, rates.msgs_out_per_s) == (10.0, 4.0)
    assert (rates.bytes_in_per_s, rates.bytes_out_per_s) == (1_000.0, 0.0)
    assert window.partial == frozenset()


def test_a_topic_that_came_within_the_window_is_counted_from_zero_and_named() -> None:
    window = between({}, {TOPIC: Counters(msgs_in=50)}, 5.0)
    assert window.rates[TOPIC].msgs_in_per_s == 10.0
    assert window.partial == {TOPIC}


def test_a_topic_that_was_loaded_again_began_at_zero() -> None:
    window = between({TOPIC: Counters(bytes_in=900)}, {TOPIC: Counters(bytes_in=100)}, 10.0)
    assert window.rates[TOPIC].bytes_in_per_s == 10.0
    assert window.partial == {TOPIC}


def test_a_topic_that_left_has_no_rate() -> None:
    window = between({TOPIC: Counters(1), OTHER: Counters(1)}, {OTHER: Counters(2)}, 1.0)
    assert set(window.rates) == {OTHER}
