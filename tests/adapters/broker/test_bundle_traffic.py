import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.ids import parse_topic
from loadmanager.core.load import BundleStats
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


@given(
    messages=st.lists(
        st.tuples(st.floats(0.001, 1.0), st.sampled_from("abc"), st.integers(0, 1000)), max_size=40
    ),
    pause_s=st.floats(0, 3.0),
)
def test_rates_of_topics_add_up(messages: list[tuple[float, str, int]], pause_s: float) -> None:
    traffic, now_s = BundleTraffic(2.0, since_s=0.0), 0.0
    for gap_s, topic, payload_bytes in messages:
        now_s += gap_s
        name = parse_topic(f"t/n/{topic}")
        traffic.add(topic=name, producer="p", payload_bytes=payload_bytes, now_s=now_s)
    stats, topics = traffic.stats(now_s + pause_s), traffic.topics(now_s + pause_s)
    assert len(topics) == stats.topics
    assert sum(one.msgs_per_s for one in topics.values()) == pytest.approx(stats.msgs_per_s)
    assert sum(one.bytes_per_s for one in topics.values()) == pytest.approx(stats.bytes_per_s)
