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
    traffic = BundleTraffic(2.0, since_s=10.0)
    assert (traffic.stats(11.0), traffic.topics(11.0)) == (BundleStats(), {})


@pytest.mark.parametrize(
    ("since_s", "sent_at_s", "now_s", "rate"),
    [
        pytest.param(0.0, [n / 10 + 0.05 for n in range(100)], 10.0, 10.0, id="a steady rate"),
        # A tenth of the window is the least that a rate is computed over.
        pytest.param(10.0, [10.001], 10.002, 5.0, id="the first message is no burst"),
        pytest.param(10.0, [10.05 + n / 10 for n in range(10)], 11.0, 10.0, id="since the load"),
        pytest.param(0.0, [5.0], 5.5, 0.5, id="within the window"),
        pytest.param(0.0, [5.0], 7.01, 0.0, id="older than the window"),
    ],
)
def test_a_rate_is_over_the_window_or_the_time_since_the_load(
    since_s: float, sent_at_s: list[float], now_s: float, rate: float
) -> None:
    traffic = BundleTraffic(2.0, since_s)
    for at_s in sent_at_s:
        add(traffic, at_s)
    stats = traffic.stats(now_s)
    assert stats.msgs_in_per_s == pytest.approx(rate, rel=0.06)
    assert stats.bytes_in_per_s == pytest.approx(100 * stats.msgs_in_per_s)


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
