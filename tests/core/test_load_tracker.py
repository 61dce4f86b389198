import heapq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_view import bundle, make_view, owner_of

from loadmanager.core import load_tracker
from loadmanager.core.averages import Average, BundleAverages, Running
from loadmanager.core.cluster import Moved, TopBundle, UnknownBroker
from loadmanager.core.columns import Listing
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BrokerUrls, BundleStats, LoadReport, ResourceUsage
from loadmanager.core.load_tracker import BrokerLoad, LoadTracker
from loadmanager.core.memory import Memory, RoundMemory
from loadmanager.core.rates import Rates
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.top_k import TopBundles

A, B = BrokerId("a:1"), BrokerId("b:1")


def report(broker: BrokerId, rates: dict[int, float], **changed: object) -> LoadReport:
    plain = LoadReport(
        broker=broker,
        urls=BrokerUrls(http_url=f"http://{broker}"),
        sidecar_url="",
        reported_at_ms=0,
        started_at_ms=1,
        cpu=ResourceUsage(80.0, 800.0),
        bundles={bundle(n): BundleStats(msgs_in_per_s=rate, topics=2) for n, rate in rates.items()},
    )
    return replace(plain, **changed)  # type: ignore[arg-type]  # fields by name


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("report"),
            st.sampled_from([A, B]),
            st.dictionaries(st.integers(0, 9), st.floats(0, 1000), max_size=5),
        ),
        st.tuples(st.just("forget"), st.sampled_from([A, B]), st.none()),
        st.tuples(st.just("sample"), st.none(), st.none()),
    ),
    max_size=25,
)


@given(steps)
def test_averages_are_those_by_itself(done: list[tuple[str, BrokerId, dict[int, float]]]) -> None:
    tracker = LoadTracker()
    newest: dict[BundleId, BundleStats] = {}
    listed: dict[BrokerId, LoadReport] = {}
    slowly: dict[BundleId, BundleAverages] = {}
    for kind, broker, rates in done:
        if kind == "report":
            listed[broker] = report(broker, rates)
            newest.update(listed[broker].bundles)
            tracker.report(listed[broker], 0.0)
        elif kind == "forget":
            listed.pop(broker, None)
            tracker.forget(broker, 0.0)
        else:
            for name in {one for load in listed.values() for one in load.bundles}:
                before = slowly.get(name, BundleAverages.supposed())
                slowly[name] = before.add(newest[name])
            tracker.sample()
    assert tracker.averages() == slowly
    assert tracker.brokers == tracker.loads.keys() == listed.keys()
    assert all(tracker.loads[broker].totals == load.totals for broker, load in listed.items())
    view = tracker.view(0.0)
    for broker, load in listed.items():
        assert set(view.bundles_of(broker)) == load.bundles.keys()


def test_a_view_stays_as_it_was_whatever_is_reported_later() -> None:
    tracker = LoadTracker()
    tracker.report(report(A, {1: 10.0}), 0.0)
    tracker.sample()
    before = tracker.view(1.0)
    short = before.bundles.short.copy()
    tracker.report(report(A, {1: 99.0, **dict.fromkeys(range(2, 200), 5.0)}), 2.0)
    tracker.sample()
    tracker.seed({bundle(1): BundleAverages.supposed(Rates(7.0))})
    assert before.bundles.short.tolist() == short.tolist()
    assert before.bundles_of(A) == (bundle(1),)
    assert before.long_rates(bundle(50)) is None


def test_a_bundle_that_arrived_is_not_under_way_any_more() -> None:
    tracker = LoadTracker()
    tracker.report(report(A, {1: 10.0, 2: 10.0}), 0.0)
    tracker.report(report(B, {3: 10.0}), 0.0)
    gone = BrokerId("gone:1")
    view = tracker.view(0.0, in_flight={bundle(1): B, bundle(3): B, bundle(9): A, bundle(2): gone})
    assert view.moved == {bundle(1): B, bundle(9): A}
    assert (owner_of(view, bundle(1)), view.listed_owner(bundle(1))) == (B, A)
    assert (owner_of(view, bundle(2)), owner_of(view, bundle(8))) == (A, None)
    assert view.bundles_of(A) == (bundle(2), bundle(9))
    assert view.bundles_of(B) == (bundle(3), bundle(1))
    # Nobody measured either of them yet: 50 messages/s each way are supposed.
    assert view.brokers.preallocated_msgs_per_s.tolist() == [100.0, 100.0]


def test_membership_and_departures_are_told_with_their_times() -> None:
    tracker = LoadTracker()
    tracker.report(report(A, {}), 5.0)
    tracker.report(report(A, {}), 9.0)
    assert tracker.view(10.0).membership_changed_s == 5.0
    tracker.forget(A, 11.0)
    tracker.forget(A, 12.0)
    view = tracker.view(12.0)
    assert (view.membership_changed_s, view.departures_s) == (11.0, (11.0,))
    tracker.report(report(B, {}), 20.0)
    tracker.forget(B, 5000.0)
    assert tracker.view(5000.0).departures_s == (5000.0,)


def test_the_heaviest_bundles_may_be_of_a_listing_that_is_made_on_access() -> None:
    listing = Listing.of({bundle(n): BundleStats(bytes_in_per_s=n) for n in range(3)})
    tops = TopBundles({A: lambda: listing}, 1, like_java=False)
    assert tops[A] == (TopBundle(bundle(2), 2.0),) == tops[A]


def test_a_restarted_broker_starts_its_average_afresh() -> None:
    tracker = LoadTracker(history_fraction=0.5)
    tracker.report(report(A, {}, cpu=ResourceUsage(800.0, 800.0)), 0.0)
    tracker.sample()
    tracker.report(report(A, {}), 1.0)
    assert tracker.view(1.0).brokers.load_ema.tolist() == [1.0]
    tracker.sample()
    assert tracker.view(1.0).brokers.load_ema.tolist() == pytest.approx([0.55])
    tracker.report(report(A, {}, started_at_ms=2), 2.0)
    assert np.isnan(tracker.view(2.0).brokers.load_ema[0])


def test_the_next_leader_goes_on_with_the_averages_of_brokers_that_live_on() -> None:
    former = LoadTracker()
    for broker in (A, B):
        former.report(report(broker, {}, cpu=ResourceUsage(800.0, 800.0)), 0.0)
    assert former.running() == {}  # no sample was taken yet
    former.sample()
    former.forget(BrokerId("gone:1"), 3.0)
    assert former.running()[A] == Running(started_at_ms=1, load=1.0, bytes_per_s=0.0)
    heir = LoadTracker()
    departed = {BrokerId("c:1"): 5.0, BrokerId("of a clock ahead:1"): 50.0}
    heir.inherit(former.running(), departed, 10.0)
    assert heir.departed_at_s == {"c:1": 5.0}
    heir.report(report(A, {}), 11.0)
    heir.report(report(B, {}, started_at_ms=2), 11.0)
    view = heir.view(12.0)
    assert view.brokers.load_ema.tolist() == pytest.approx([1.0, float("nan")], nan_ok=True)
    assert (view.departures_s, view.membership_changed_s) == ((5.0,), 11.0)


def test_samples_to_come_are_weighed_anew() -> None:
    tracker = LoadTracker(history_fraction=0.0)
    tracker.report(report(A, {}, cpu=ResourceUsage(800.0, 800.0)), 0.0)
    tracker.sample()
    assert tracker.view(0.0).brokers.load_ema.tolist() == [1.0]
    tracker.weigh(ResourceWeights(cpu=0.5))
    tracker.sample()
    assert tracker.view(0.0).brokers.load_ema.tolist() == [0.5]


def test_the_heaviest_bundles_are_picked() -> None:
    stats = {bundle(n): BundleStats(bytes_in_per_s=n * 1e6) for n in range(1, 4)}
    tracker = LoadTracker(top_k=2)
    tracker.put(BrokerLoad(broker=A, listing=Listing.of(stats)))
    tracker.put(BrokerLoad(broker=B, listing=Listing.of({})))
    tops = tracker.view(0.0).top_bundles
    assert len(tops) == 2
    assert tops == {A: (TopBundle(bundle(2), 2e6), TopBundle(bundle(3), 3e6)), B: ()}
    assert tops[A] is tops[A]  # They are selected once.


def test_bundles_of_a_broker_come_in_order_and_with_those_under_way() -> None:
    stats = {bundle(n): BundleStats(bytes_in_per_s=n * 1e6) for n in (3, 1, 2)}
    tracker = LoadTracker()
    tracker.put(BrokerLoad(broker=A, listing=Listing.of(stats)))
    view = tracker.view(0.0, in_flight={bundle(1): A, bundle(7): A})
    assert view.moved == {bundle(7): A}
    assert view.bundles_of(A) == (*sorted(stats), bundle(7))
    assert view.top_bundles == {A: tuple(TopBundle(bundle(n), n * 1e6) for n in (1, 2, 3))}


def test_an_empty_cluster_has_a_view() -> None:
    tracker = LoadTracker()
    tracker.sample()
    tracker.seed({})
    view = tracker.view(0.0)
    assert view.brokers.names == ()
    with pytest.raises(UnknownBroker, match="broker a:1 has no load report in this view"):
        view.row(A)


def test_bundles_long_gone_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_tracker, "_COMPACT_ABOVE", 8)
    monkeypatch.setattr(load_tracker, "_KEPT_SAMPLES", 3)
    tracker = LoadTracker()
    tracker.report(report(A, dict.fromkeys(range(20), 1.0)), 0.0)
    tracker.sample()
    old = tracker.view(0.0)
    tracker.report(report(A, {15: 3.0, 16: 3.0}), 1.0)
    for _ in range(4):
        tracker.sample()
    assert tracker.averages().keys() == {bundle(15), bundle(16)}
    view = tracker.view(2.0)
    assert view.bundles_of(A) == (bundle(15), bundle(16))
    assert view.long_rates(bundle(15)) == Rates((1.0 + 4 * 3.0) / 5)
    assert old.bundles_of(A) == tuple(bundle(number) for number in range(20))
    tracker.sample()
    assert tracker.averages()[bundle(15)].long.samples == 6


def test_a_move_takes_load_from_one_and_gives_it_to_the_other() -> None:
    view = make_view({"a:1": (0.8, {1: 100.0, 2: 300.0}), "b:1": (0.2, {3: 100.0})})
    after = view.after(bundle(2), A, B, np.array([480.0, 0.0, 0.0, 0.0, 0.0]))
    assert after.brokers.usage[:, 0].tolist() == pytest.approx([160.0, 640.0])
    assert after.brokers.msgs_per_s.tolist() == [100.0, 400.0]
    assert after.brokers.long_msgs_per_s.tolist() == [100.0, 100.0]
    assert after.brokers.preallocated_msgs_per_s.tolist() == [0.0, 300.0]
    assert (owner_of(after, bundle(2)), owner_of(view, bundle(2))) == (B, A)
    assert not after.selectable[after.bundles.index[bundle(2)]]


def test_an_unowned_bundle_only_adds() -> None:
    view = make_view({"a:1": (0.5, {1: 100.0})})
    after = view.after(bundle(7), None, A, np.zeros(5))
    assert after.brokers.msgs_per_s.tolist() == [200.0]
    assert after.bundles_of(A) == (bundle(1), bundle(7))


def test_supposed_rates_stand_for_a_bundle_without_a_sample() -> None:
    average = BundleAverages(Average(10, 0, Rates(5.0)), Average(1000, 0, Rates(6.0)))
    tracker = LoadTracker()
    tracker.report(report(A, {1: 1.0}), 0.0)
    tracker.seed({bundle(1): average})
    view = tracker.view(0.0)
    assert (view.long_rates(bundle(1)), view.long_msgs_per_s(bundle(1))) == (None, 6.0)
    assert not view.selectable.any()


bundles = st.sampled_from([BundleId(f"t/n/{n}") for n in range(6)])
brokers = st.sampled_from([BrokerId("a:1"), BrokerId("b:1")])


@given(
    first=st.dictionaries(bundles, brokers, max_size=3),
    story=st.lists(st.tuples(st.integers(0, 20), bundles, brokers), max_size=20),
)
def test_each_value_stays_as_it_was_whatever_is_added_to_it_later(
    first: dict[BundleId, BrokerId], story: list[tuple[int, BundleId, BrokerId]]
) -> None:
    made = [(Moved.of(first), first)]
    for place, one, broker in story:
        former, plain = made[place % len(made)]
        made.append((former.adding(one, broker), {**plain, one: broker}))
    for moved, plain in made:
        assert moved == plain
        assert list(moved.items()) == list(plain.items())
        assert len(moved) == len(plain)
        for number in range(6):
            bundle = BundleId(f"t/n/{number}")
            assert moved.get(bundle) == plain.get(bundle)
            assert (bundle in moved) == (bundle in plain)


def test_what_another_value_added_is_not_in_this_one() -> None:
    first = Moved.of({})
    first.adding(BundleId("t/n/1"), BrokerId("a:1"))
    with pytest.raises(KeyError, match="t/n/1"):
        first[BundleId("t/n/1")]
    assert first.get(BundleId("t/n/1"), BrokerId("b:1")) == "b:1"
    assert Moved.of(first) is first


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
