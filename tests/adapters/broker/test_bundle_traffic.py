from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.ids import parse_topic
from loadmanager.core.load import BundleStats
from loadmanager.core.rates import Rates
from loadmanager.reference_broker.memory_broker import BundleTraffic


def add(traffic: BundleTraffic, now_s: float, topic: str = "t", producer: str = "p") -> None:
    name = parse_topic(f"t/n/{topic}")
    traffic.add(topic=name, producer=producer, payload_bytes=100, now_s=now_s)


def test_without_messages_all_is_zero() -> None:
    assert BundleTraffic(2.0, since_s=10.0).stats(11.0) == BundleStats()


def test_a_steady_rate_is_told_as_it_is() -> None:
    traffic = BundleTraffic(2.0, since_s=0.0)
    for tenth in range(100):
        add(traffic, tenth / 10 + 0.05)
    stats = traffic.stats(10.0)
    assert stats.msgs_in_per_s == pytest.approx(10.0)
    assert stats.bytes_in_per_s == pytest.approx(1000.0)


def test_right_after_a_load_the_first_message_is_no_burst() -> None:
    traffic = BundleTraffic(2.0, since_s=10.0)
    add(traffic, 10.001)
    # A tenth of the window is the least that a rate is computed over.
    assert traffic.stats(10.002).msgs_in_per_s == pytest.approx(5.0)


def test_soon_after_a_load_a_rate_is_over_the_time_since() -> None:
    traffic = BundleTraffic(2.0, since_s=10.0)
    for tenth in range(10):
        add(traffic, 10.05 + tenth / 10)
    assert traffic.stats(11.0).msgs_in_per_s == pytest.approx(10.0)


def test_what_is_older_than_the_window_does_not_count() -> None:
    traffic = BundleTraffic(2.0, since_s=0.0)
    add(traffic, 5.0)
    assert traffic.stats(5.5).msgs_in_per_s > 0
    assert traffic.stats(7.01).msgs_in_per_s == 0


def test_topics_count_since_the_load_and_producers_over_the_window() -> None:
    traffic = BundleTraffic(2.0, since_s=0.0)
    add(traffic, 5.0, topic="a", producer="p1")
    add(traffic, 5.5, topic="b", producer="p2")
    add(traffic, 6.5, topic="b", producer="p1")
    assert (traffic.stats(6.6).topics, traffic.stats(6.6).producers) == (2, 2)
    assert (traffic.stats(8.0).topics, traffic.stats(8.0).producers) == (2, 1)
    assert (traffic.stats(9.0).topics, traffic.stats(9.0).producers) == (2, 0)


def test_each_topic_has_its_own_rates_over_the_same_window() -> None:
    traffic = BundleTraffic(2.0, since_s=0.0)
    add(traffic, 1.0, topic="idle")
    for tenth in range(100):
        add(traffic, tenth / 10 + 0.05, topic="slow" if tenth % 5 == 0 else "fast")
    slow, fast = parse_topic("t/n/slow"), parse_topic("t/n/fast")
    # Of the window, 1.99 s are covered, with 4 and 16 messages.
    topics = traffic.topics(9.99)
    assert topics.keys() == {slow, fast, parse_topic("t/n/idle")}
    assert topics[parse_topic("t/n/idle")] == Rates()
    assert (topics[slow].msgs_per_s, topics[slow].bytes_per_s) == pytest.approx(
        (4 / 1.99, 400 / 1.99)
    )
    assert (topics[fast].msgs_per_s, topics[fast].bytes_per_s) == pytest.approx(
        (16 / 1.99, 1600 / 1.99)
    )


def test_a_bundle_without_messages_has_no_topics() -> None:
    assert BundleTraffic(2.0, since_s=0.0).topics(1.0) == {}


@given(
    messages=st.lists(
        st.tuples(st.floats(0.001, 1.0), st.sampled_from("abc"), st.integers(0, 1000)),
        max_size=40,
    ),
    pause_s=st.floats(0, 3.0),
)
def test_the_rates_of_the_topics_are_those_of_the_bundle(
    messages: list[tuple[float, str, int]], pause_s: float
) -> None:
    traffic, now_s = BundleTraffic(2.0, since_s=0.0), 0.0
    for gap_s, topic, payload_bytes in messages:
        now_s += gap_s
        name = parse_topic(f"t/n/{topic}")
        traffic.add(topic=name, producer="p", payload_bytes=payload_bytes, now_s=now_s)
    stats, topics = traffic.stats(now_s + pause_s), traffic.topics(now_s + pause_s)
    assert len(topics) == stats.topics
    assert sum(one.msgs_per_s for one in topics.values()) == pytest.approx(stats.msgs_per_s)
    assert sum(one.bytes_per_s for one in topics.values()) == pytest.approx(stats.bytes_per_s)


@given(
    gaps=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=60),
    window_s=st.floats(0.1, 5.0),
    since_s=st.floats(0, 1000),
)
def test_a_rate_lies_between_what_the_window_and_what_its_whole_slots_hold(
    gaps: list[float], window_s: float, since_s: float
) -> None:
    traffic = BundleTraffic(window_s, since_s)
    sent = [since_s + gap_s for gap_s in accumulate(gaps)]
    for sent_s in sent:
        add(traffic, sent_s)
    now_s = sent[-1]
    covered_s = max(window_s / 10, min(window_s, now_s - since_s))
    in_window = sum(1 for sent_s in sent if sent_s > now_s - window_s - 1e-6)
    in_whole_slots = sum(1 for sent_s in sent if sent_s > now_s - 0.9 * window_s + 1e-6)
    rate = traffic.stats(now_s).msgs_in_per_s
    # What is covered is the window, or up to a tenth less of it.
    assert in_whole_slots / covered_s <= rate * (1 + 1e-6)
    assert rate <= in_window / max(window_s / 10, 0.9 * covered_s - 1e-6) * (1 + 1e-6)
