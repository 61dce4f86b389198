"""What rounds take to another thread: values that stay as they are whatever comes meanwhile."""

import heapq

import pytest
from small_view import bundle

from loadmanager.core.averages import BundleAverages
from loadmanager.core.columns import Listing
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BundleStats
from loadmanager.core.load_tracker import BrokerLoad, LoadTracker
from loadmanager.core.memory import Memory, RoundMemory

B1 = BrokerId("b1:8080")


def load(sizes: dict[BundleId, float], started_at_ms: int = 1) -> BrokerLoad:
    stats = {one: BundleStats(bytes_in_per_s=size) for one, size in sizes.items()}
    return BrokerLoad(broker=B1, listing=Listing.of(stats), started_at_ms=started_at_ms)


def test_a_tally_makes_the_view_of_its_moment() -> None:
    tracker = LoadTracker()
    tracker.put(load({bundle(1): 10.0}))
    tracker.sample()
    before, orders = tracker.tally(), {bundle(9): B1}
    expected = tracker.view(5.0, in_flight=orders)
    # A sample more, a bundle more and another life of the broker.
    tracker.put(load({bundle(1): 99.0, bundle(2): 5.0}, started_at_ms=2))
    tracker.sample()
    view = before.view(5.0, in_flight=orders)
    assert view.brokers.started_at_ms == (1,)
    assert view.brokers.load_ema.tolist() == expected.brokers.load_ema.tolist()
    assert view.bundles.short.tolist() == expected.bundles.short.tolist()
    assert (view.bundles_of(B1), view.moved) == ((bundle(1), bundle(9)), orders)
    assert list(view.bundles.namespaces) == list(expected.bundles.namespaces)


def test_averages_are_those_of_their_moment() -> None:
    tracker = LoadTracker()
    tracker.put(load({bundle(number): float(number % 3) for number in range(6)}))
    tracker.sample()
    before = tracker.averages()
    whole = dict(before)
    tracker.put(load({bundle(number): 7.0 for number in range(9)}))
    tracker.sample()
    assert dict(before) == whole
    assert len(before) == 6
    for number in (7, 30):  # One came later, and one is none.
        assert before.long_rates(bundle(number)) is None
        with pytest.raises(KeyError):
            before[bundle(number)]
    assert before.long_rates(bundle(2)) == before[bundle(2)].long.rates


@pytest.mark.parametrize("count", [0, 1, 3, 9])
def test_the_heaviest_are_those_with_the_most_bytes(count: int) -> None:
    tracker = LoadTracker()
    tracker.put(load({bundle(number): float(number % 3) for number in range(6)}))
    tracker.sample()
    averages = tracker.averages()

    def bytes_per_s(item: tuple[BundleId, BundleAverages]) -> float:
        return item[1].short.rates.bytes_per_s

    expected = heapq.nlargest(count, averages.items(), key=bytes_per_s)
    assert list(averages.heaviest(count).items()) == expected


def test_what_changed_while_a_round_was_computed_is_remembered() -> None:
    former = RoundMemory(moved_at_s={bundle(1): 1.0, bundle(2): 1.0})
    shed, placed = Memory(turn=1), Memory(turn=2)
    left = RoundMemory(shedder=shed, placement=placed, moved_at_s={bundle(2): 1.0, bundle(3): 9.0})
    assert left.with_changes(former, former) is left
    # A bundle moved on request, which leaves both strategies' memories alone.
    now = RoundMemory(
        shedder=former.shedder,
        placement=former.placement,
        moved_at_s={**former.moved_at_s, bundle(4): 8.0},
    )
    kept = left.with_changes(former, now)
    assert (kept.shedder, kept.placement) == (shed, placed)
    assert kept.moved_at_s == {bundle(2): 1.0, bundle(3): 9.0, bundle(4): 8.0}
    # Bundles placed, and orders of an earlier round known at last.
    now = RoundMemory(shedder=Memory(turn=3), placement=Memory(turn=4))
    kept = left.with_changes(former, now)
    assert (kept.shedder, kept.placement) == (now.shedder, now.placement)
    assert kept.moved_at_s == left.moved_at_s
