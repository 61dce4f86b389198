"""The shape of the demo's traffic."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import position
from loadmanager.core.ids import BrokerId, BundleId, Namespace, TopicName
from loadmanager.demo.traffic import Schedule, bundle_shares, topic_names, topic_shares

NAMESPACE = Namespace("public/demo")


def round_robin(bundles: int, brokers: int) -> dict[BundleId, BrokerId]:
    names = Boundaries.even(NAMESPACE, bundles).bundles
    return {bundle: BrokerId(f"b{i % brokers}:80") for i, bundle in enumerate(names)}


def topic(local: str) -> TopicName:
    return TopicName("persistent", NAMESPACE, local)


def broker_shares(placement: dict[BundleId, BrokerId], seed: int) -> dict[BrokerId, float]:
    found: defaultdict[BrokerId, float] = defaultdict(float)
    for bundle, share in bundle_shares(placement, seed).items():
        found[placement[bundle]] += share
    return found


@given(bundles=st.integers(1, 64), extra=st.integers(0, 100))
def test_every_bundle_has_its_even_part_of_the_topics(bundles: int, extra: int) -> None:
    bounds = Boundaries.even(NAMESPACE, bundles)
    names = topic_names(bundles + extra, bounds, "murmur3")
    counts = Counter(bounds.at(position(name, "murmur3")) for name in names)
    assert len(set(names)) == bundles + extra
    assert set(counts) == set(bounds.bundles)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_fewer_topics_than_bundles_are_refused() -> None:
    with pytest.raises(ValueError, match="3 topics cannot cover 4 bundles"):
        topic_names(3, Boundaries.even(NAMESPACE, 4), "murmur3")


@given(brokers=st.integers(2, 16), each=st.integers(1, 16), seed=st.integers(0, 2**32))
def test_one_broker_gets_its_hot_share_and_the_shares_sum_to_one(
    brokers: int, each: int, seed: int
) -> None:
    shares = broker_shares(round_robin(brokers * each, brokers), seed)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert max(shares.values()) == pytest.approx(min(0.95, 2.2 / brokers))


def test_the_broker_with_most_bundles_is_the_hot_one() -> None:
    placement = round_robin(33, 4)
    shares = broker_shares(placement, seed=7)
    assert max(shares, key=shares.__getitem__) == "b0:80"


def test_one_broker_alone_gets_everything() -> None:
    assert broker_shares(round_robin(4, 1), seed=1) == {"b0:80": pytest.approx(1.0)}


@pytest.mark.parametrize("seed", range(20))
def test_spreading_the_largest_bundles_greedily_balances_to_well_below_1_25(seed: int) -> None:
    placement = round_robin(32, 4)
    shares = bundle_shares(placement, seed)
    loads = dict.fromkeys(placement.values(), 0.0)
    for share in sorted(shares.values(), reverse=True):
        loads[min(loads, key=loads.__getitem__)] += share
    assert max(loads.values()) * 4 < 1.1
    # What one move can shift stays below a third of what a broker has on the mean.
    assert max(shares.values()) * 4 < 0.33


def test_the_same_seed_gives_the_same_shares_and_another_one_others() -> None:
    placement = round_robin(32, 4)
    assert bundle_shares(placement, 5) == bundle_shares(placement, 5)
    assert bundle_shares(placement, 5) != bundle_shares(placement, 6)


def test_a_bundles_share_is_split_among_its_topics_as_zipf_says() -> None:
    first, second = Boundaries.even(NAMESPACE, 2).bundles
    bundle_of = {topic("a"): first, topic("b"): first, topic("c"): first, topic("d"): second}
    shares = topic_shares(bundle_of, {first: 0.55, second: 0.45}, seed=3)
    assert sorted(shares.values(), reverse=True) == pytest.approx([0.45, 0.3, 0.15, 0.1])
    assert shares[topic("d")] == pytest.approx(0.45)


def test_each_topic_keeps_its_own_steady_beat() -> None:
    shares = {topic("a"): 0.75, topic("b"): 0.25, topic("never"): 0.0}
    schedule = Schedule(shares, rate_per_s=40, start_s=100.0, seed=1)
    messages = schedule.due(110.0)
    assert messages == sorted(messages, key=lambda message: message[0])
    times = [due_s for due_s, name in messages if name == topic("a")]
    assert [b - a for a, b in pairwise(times)] == pytest.approx([1 / 30] * 299)
    assert Counter(name.local for _, name in messages) == {"a": 300, "b": 100}
    assert schedule.next_s > 110.0
    assert schedule.due(110.0) == []


def test_a_schedule_without_topics_is_never_due() -> None:
    schedule = Schedule({}, rate_per_s=40, start_s=0.0, seed=1)
    assert schedule.next_s == float("inf")
    assert schedule.due(1e9) == []
