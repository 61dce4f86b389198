import zlib

import pytest

from loadmanager.core.bundle_traffic import (
    BundleTraffic,
    TopicCounters,
    Window,
    between,
    bundle_traffic,
    topics_in,
)
from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import FULL_RANGE_END, lies_in, position
from loadmanager.core.ids import BundleId, Namespace, parse_full_topic, parse_topic
from loadmanager.core.load import BundleStats
from loadmanager.core.rates import Rates

BOUNDARIES = Boundaries.even(Namespace("t/n"), 4)
TOPIC = "persistent://t/n/topic-1"
PASSING = Rates(msgs_out_per_s=7.0)
RATES = Rates(msgs_in_per_s=1.0, msgs_out_per_s=2.0, bytes_in_per_s=30.0, bytes_out_per_s=40.0)


def home(topic: str) -> BundleId:
    return BOUNDARIES.at(position(parse_full_topic(topic), "crc32"))


def traffic(*topics: str, partial: str = "") -> tuple[dict[BundleId, BundleTraffic], BundleTraffic]:
    window = Window(
        dict.fromkeys(topics, RATES), frozenset({partial} - {""}), dict.fromkeys(topics, PASSING)
    )
    found, homeless = bundle_traffic(BOUNDARIES.bundles, window)
    return dict(found), homeless


def test_topics_count_in_the_bundle_that_holds_their_hash() -> None:
    topics = [f"persistent://t/n/topic-{number}" for number in range(40)]
    found, homeless = traffic(*topics)
    for bundle in BOUNDARIES.bundles:
        held = [topic for topic in topics if home(topic) == bundle]
        assert found[bundle].topics == len(held)
        assert found[bundle].msgs_per_s == pytest.approx(3.0 * len(held))
        assert found[bundle].bytes_per_s == pytest.approx(70.0 * len(held))
        assert found[bundle].passing.msgs_per_s == pytest.approx(7.0 * len(held))
    assert homeless.topics == 0


def test_statistics_of_a_bundle_are_its_rates_and_topics() -> None:
    one = BundleTraffic(1.0, 2.0, 3.0, 4.0, topics=5, partial=True)
    assert one.stats() == BundleStats(1.0, 2.0, 3.0, 4.0, topics=5)


def test_a_partial_rate_and_a_non_persistent_topic_mark_their_bundle() -> None:
    other = "non-persistent://t/n/x"
    found, _ = traffic(TOPIC, other, partial=TOPIC)
    assert found[home(TOPIC)].partial
    assert found[home(other)].non_persistent


def test_topics_of_pulsars_services_are_named_and_change_events_are_not() -> None:
    internal, events = "persistent://t/n/__transaction_buffer", "persistent://t/n/__change_events"
    found, _ = traffic(internal)
    assert found[home(internal)].internal == internal
    assert found[home(internal)].needed == ""
    for needed in (events, "persistent://t/n/__transaction_buffer_snapshot_segments"):
        found, _ = traffic(needed)
        assert (found[home(needed)].internal, found[home(needed)].needed) == ("", needed)


@pytest.mark.parametrize("topic", ["persistent://other/ns/topic", "nonsense", "x://t/n/a"])
def test_a_topic_that_no_listed_bundle_holds_is_counted_apart(topic: str) -> None:
    found, homeless = traffic(topic)
    assert (homeless.topics, homeless.row(), homeless.passing) == (1, RATES.row(), PASSING)
    assert {*found.values()} == {BundleTraffic()}


def test_ranges_with_gaps_hold_nothing_in_between() -> None:
    topics = [f"persistent://t/n/topic-{number}" for number in range(40)]
    first, _, third, last = BOUNDARIES.bundles
    window = Window(dict.fromkeys(topics, RATES), frozenset())
    found, homeless = bundle_traffic([third], window)
    assert found[third].topics == sum(home(topic) == third for topic in topics)
    assert homeless.topics == len(topics) - found[third].topics
    assert {home(topic) for topic in topics} >= {first, third, last}


def test_the_last_position_belongs_to_the_last_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.core.bundle_traffic.position", lambda *_: FULL_RANGE_END)
    found, homeless = traffic(TOPIC)
    assert (found[BOUNDARIES.bundles[-1]].topics, homeless.topics) == (1, 0)


LAST = "persistent://t/n/caaaacaccccccacacccaaacccacccaccaaaaaaaa"
"""A topic with the position 0xffffffff."""


def test_a_range_has_its_lower_bound_and_not_its_upper_one_unless_it_is_the_last() -> None:
    first, second, *_, last = BOUNDARIES.bundles
    bound = 0x40000000
    assert not lies_in(bound, first)
    assert lies_in(bound - 1, first)
    assert lies_in(bound, second)
    assert lies_in(FULL_RANGE_END, last)
    assert not lies_in(FULL_RANGE_END, first)


def test_the_topics_of_a_bundle_are_found_by_namespace_and_position() -> None:
    names = (LAST, TOPIC, TOPIC.replace("t/n", "t/other"), "no topic")
    found = {name: at for one in BOUNDARIES.bundles for name, _, at in topics_in(one, names)}
    assert found == {LAST: FULL_RANGE_END, TOPIC: position(parse_full_topic(TOPIC), "crc32")}
    assert next(name for name, *_ in topics_in(BOUNDARIES.bundles[-1], names)) == LAST


# What a topic had counted of each subscription before and after a window of ten seconds, in which
# 50 messages of ten bytes are published: 5 a second, and 50 bytes. A cluster has messages a second.
# Then: lasting messages out a second, passing ones, whether rates are lower bounds.
WINDOWS: dict[str, tuple[dict[str, float], dict[str, float], float, float, bool]] = {
    "steady": ({"sub": 100}, {"sub": 120}, 2.0, 0.0, False),
    "a subscription ends": ({"sub": 100, "reader": 1e6}, {"sub": 150}, 5.0, 0.0, False),
    "a subscription begins": ({"sub": 100}, {"sub": 150, "new": 40}, 5.0, 4.0, False),
    "one with an old counter": ({"sub": 100}, {"sub": 150, "new": 1e6}, 5.0, 5.0, False),
    "a consumer's share of a subscription goes": (
        {"sub": 1e6, "other": 100}, {"sub": 30, "other": 150}, 5.0, 3.0, True
    ),
    "a subscription gets nothing": ({"sub": 100}, {"sub": 150, "late": 0}, 5.0, 0.0, False),
    "a backlog is read": (
        {"sub": 100, "late": 0}, {"sub": 150, "late": 10_000}, 10.0, 995.0, False
    ),
    "twice as much as is published lasts": ({"sub": 100}, {"sub": 200}, 10.0, 0.0, False),
    "a topic is compacted": ({"__compaction": 0}, {"__compaction": 40}, 0.0, 4.0, False),
    "a compaction begins anew": ({"__compaction": 400}, {"__compaction": 40}, 0.0, 4.0, False),
    "only the topic counts what it delivers": ({"": 100}, {"": 150}, 5.0, 0.0, False),
    "the topic counts what readers got that ended": (
        {"": 500, "sub": 100}, {"": 850, "sub": 150}, 5.0, 30.0, False
    ),
    "it is replicated to two clusters": ({}, {">east": 5, ">west": 5}, 10.0, 0.0, False),
    "a cluster that was cut off catches up": ({}, {">east": 500}, 5.0, 495.0, False),
    "it was loaded again": (
        {"published": 900, "sub": 900}, {"published": 50, "sub": 50}, 5.0, 0, True
    ),
    "it is new": ({}, {"published": 50, "sub": 40}, 4.0, 0.0, True),
}  # fmt: skip


def counted(published: float, out: dict[str, float]) -> TopicCounters:
    published = out.get("published", published)
    told = {name: (n, 10.0 * n) for name, n in out.items() if name != "published"}
    to = {name[1:]: told.pop(name) for name in [*told] if name.startswith(">")}
    return TopicCounters(published, 10.0 * published, told, to or None)


@pytest.mark.parametrize("name", WINDOWS)
def test_each_counter_is_compared_with_itself(name: str) -> None:
    before, after, lasting, brief, partial = WINDOWS[name]
    known = {} if name == "it is new" else {TOPIC: counted(100, before)}
    window = between(known, {TOPIC: counted(150, after)}, 10.0)
    rates, passing = window.rates[TOPIC], window.passing.get(TOPIC, Rates())
    assert (rates.msgs_in_per_s, rates.bytes_in_per_s) == (5.0, 50.0)
    assert rates.msgs_out_per_s == pytest.approx(lasting)
    assert rates.bytes_out_per_s == pytest.approx(10.0 * lasting)
    assert passing.msgs_out_per_s == pytest.approx(brief)
    assert passing.bytes_out_per_s == pytest.approx(10.0 * brief)
    assert (passing.msgs_in_per_s, window.partial) == (0.0, frozenset({TOPIC} if partial else ()))


def counters(msgs_in: float = 0.0, bytes_in: float = 0.0, **out: float) -> TopicCounters:
    return TopicCounters(msgs_in, bytes_in, counted(0.0, out).out)


def test_one_counter_of_what_is_published_that_falls_is_no_new_topic() -> None:
    window = between({TOPIC: counters(100, 900)}, {TOPIC: counters(150, 100)}, 10.0)
    assert (window.rates[TOPIC].row(), window.partial) == ((5.0, 0.0, 0.0, 0.0), frozenset())


def test_a_topic_that_left_has_no_rate() -> None:
    window = between({TOPIC: counters(1), LAST: counters(1)}, {LAST: counters(2)}, 1.0)
    assert set(window.rates) == {LAST}


def test_what_began_within_the_window_counts_no_more_than_the_brokers_own_totals_grew() -> None:
    """A page that misses a topic for once makes it look new, with all that it ever counted."""
    stays = "persistent://t/n/stays"
    before = {stays: counters(0, 0, sub=0), LAST: counters(0, 5_000, sub=500)}
    after = {
        stays: counters(100, 1_000, sub=100, new=100),
        TOPIC: TopicCounters(
            10_000, 100_000, {"sub": (10_000, 100_000), "__compaction": (10_000, 100_000)}
        ),
    }
    # 5,000 bytes in and out went with the topic that left; 2,000 of the rest belong to the new one.
    window = between(
        before, after, 10.0, (1_000.0 - 5_000.0 + 2_000.0, 1_000.0 - 5_000.0 + 2_100.0)
    )
    assert window.rates[stays] == Rates(10.0, 10.0, 100.0, 100.0)
    new = window.rates[TOPIC]
    assert (new.bytes_in_per_s, new.msgs_in_per_s) == pytest.approx((200.0, 20.0))
    out = (new, window.passing[stays], window.passing[TOPIC])
    assert sum(one.bytes_out_per_s for one in out) == pytest.approx(210.0)
    assert window.uncounted_bytes_per_s == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("totals", "uncounted", "counted"), [((500.0, 3_500.0), 300.0, 50.0), ((-1e6, -1e6), 0.0, 0.0)]
)
def test_what_only_the_brokers_own_totals_have_is_named(
    totals: tuple[float, float], uncounted: float, counted: float
) -> None:
    window = between({}, {TOPIC: counters(50, 500, sub=50)}, 10.0, totals)
    assert window.uncounted_bytes_per_s == pytest.approx(uncounted)
    assert window.rates[TOPIC].bytes_in_per_s == counted


def test_replication_is_in_no_total_of_the_broker() -> None:
    after = TopicCounters(50, 500, {"sub": (50, 500)}, {"east": (5.0, 50.0)})
    window = between({}, {TOPIC: after}, 10.0, (500.0, 500.0))
    assert (window.rates[TOPIC].bytes_out_per_s, window.uncounted_bytes_per_s) == (100.0, 0.0)


SEGMENT = "segment://t/n/orders/eu/0000-7fff-1"


def test_a_segment_of_a_scalable_topic_counts_in_the_bundle_of_its_own_name() -> None:
    # crc32 of the whole name, as NamespaceBundles of Pulsar 5.0.0-M1 computes it.
    at = zlib.crc32(SEGMENT.encode())
    found, homeless = traffic(SEGMENT)
    alone = found[BOUNDARIES.at(at)]
    assert (alone.topics, homeless.topics) == (1, 0)
    # Brokers do not answer a lookup of a segment.
    assert alone.topic == ""
    beside = next(
        name
        for name in (f"persistent://t/n/topic-{number}" for number in range(100))
        if home(name) == BOUNDARIES.at(at)
    )
    assert traffic(SEGMENT, beside)[0][home(beside)].topic == beside
    assert str(parse_topic(SEGMENT)) == SEGMENT
