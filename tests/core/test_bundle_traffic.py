import pytest

from loadmanager.core.bundle_traffic import (
    BundleTraffic,
    Counters,
    Window,
    between,
    bundle_traffic,
    topics_in,
)
from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import FULL_RANGE_END, lies_in, position
from loadmanager.core.ids import BundleId, Namespace, parse_full_topic
from loadmanager.core.load import BundleStats
from loadmanager.core.rates import Rates

BOUNDARIES = Boundaries.even(Namespace("t/n"), 4)
TOPIC = "persistent://t/n/topic-1"
RATES = Rates(msgs_in_per_s=1.0, msgs_out_per_s=2.0, bytes_in_per_s=30.0, bytes_out_per_s=40.0)


def home(topic: str) -> BundleId:
    return BOUNDARIES.at(position(parse_full_topic(topic), "crc32"))


def traffic(*topics: str, partial: str = "") -> tuple[dict[BundleId, BundleTraffic], int]:
    window = Window(dict.fromkeys(topics, RATES), frozenset({partial} - {""}))
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
    assert homeless == 0


def test_a_bundle_without_topics_has_no_traffic() -> None:
    found, _ = traffic(TOPIC)
    idle = [bundle for bundle in BOUNDARIES.bundles if bundle != home(TOPIC)]
    assert {found[bundle] for bundle in idle} == {BundleTraffic()}


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
    assert homeless == 1
    assert {one.topics for one in found.values()} == {0}


def test_ranges_with_gaps_hold_nothing_in_between() -> None:
    topics = [f"persistent://t/n/topic-{number}" for number in range(40)]
    first, _, third, last = BOUNDARIES.bundles
    window = Window(dict.fromkeys(topics, RATES), frozenset())
    found, homeless = bundle_traffic([third], window)
    assert found[third].topics == sum(home(topic) == third for topic in topics)
    assert homeless == len(topics) - found[third].topics
    assert {home(topic) for topic in topics} >= {first, third, last}


def test_the_last_position_belongs_to_the_last_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "loadmanager.core.bundle_traffic.position", lambda _topic, _hash: FULL_RANGE_END
    )
    found, homeless = traffic(TOPIC)
    assert (found[BOUNDARIES.bundles[-1]].topics, homeless) == (1, 0)


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
    window = between({TOPIC: Counters(1), LAST: Counters(1)}, {LAST: Counters(2)}, 1.0)
    assert set(window.rates) == {LAST}
