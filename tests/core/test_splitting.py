"""Cutting boundaries, and which bundles are cut; `test_vectors` has where Pulsar cuts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.bundles import Boundaries
from loadmanager.core.columns import Listing
from loadmanager.core.hashing import FULL_RANGE_END
from loadmanager.core.ids import BrokerId, BundleId, Namespace, bundle_id, range_of
from loadmanager.core.load import BundleStats
from loadmanager.core.orders import Orders, SplitOrder, decode_orders, encode_orders
from loadmanager.core.plan import Reason
from loadmanager.core.rates import Rates
from loadmanager.core.splitting.cutting import CannotSplit, can_split, even_cuts, parts_at, split
from loadmanager.core.splitting.finder import SplitRules, find_splits
from loadmanager.core.splitting.merging import (
    CannotMerge,
    Merge,
    cut_again,
    merge,
    merged_by_order,
    merges_in,
    neighbours,
    whole_ordered,
)
from loadmanager.core.splitting.positions import (
    SPLIT_ALGORITHMS,
    NoPositions,
    SplitAsk,
    SplitLimits,
    TopicLoad,
)
from loadmanager.core.top_k import heaviest

NAMESPACE = Namespace("t/n")
HALF = bundle_id(NAMESPACE, 0, 0x80000000)
MIB = 1024.0 * 1024.0


def test_cutting_where_told_needs_to_be_told_where_and_parts_one_topic_if_forced() -> None:
    cut, ask = SPLIT_ALGORITHMS["specified_positions_divide"], SplitAsk(0, 99, [TopicLoad(5)])
    with pytest.raises(NoPositions, match="expected one position or more"):
        cut(ask, SplitLimits())
    assert cut(replace(ask, positions=(7,)), SplitLimits()) is None
    assert cut(replace(ask, positions=(7,), force=True), SplitLimits()) == (7,)


@given(st.sets(st.integers(1, FULL_RANGE_END - 1), max_size=6), st.data())
def test_a_split_leaves_the_circle_tiled(inner: set[int], data: st.DataObject) -> None:
    before = Boundaries(NAMESPACE, (0, *sorted(inner), FULL_RANGE_END), 7)
    target = data.draw(st.sampled_from(before.bundles))
    lower, upper = range_of(target)
    cuts = data.draw(st.lists(st.integers(lower - 1, upper + 1), max_size=3))
    fits = can_split(target) and cuts and len(set(cuts)) == len(cuts)
    if not fits or not all(lower < one < upper for one in cuts):
        with pytest.raises(CannotSplit):
            split(before, target, cuts)
        return
    after = split(before, target, cuts)
    assert set(after.bounds) == {*before.bounds, *cuts}
    assert after.version == 7


def test_a_bundle_that_is_no_more_is_not_cut() -> None:
    with pytest.raises(CannotSplit, match="it is no bundle of the namespace now"):
        split(Boundaries.even(NAMESPACE, 4), HALF, [5])


def test_a_bundle_is_cut_into_equal_parts() -> None:
    assert even_cuts(HALF, 4) == (0x20000000, 0x40000000, 0x60000000)
    for parts in (0, 1, 2**32):
        with pytest.raises(CannotSplit, match=f"{parts} parts"):
            even_cuts(HALF, parts)


def test_the_parts_of_one_cut_have_the_whole_range() -> None:
    assert parts_at(HALF, 0x20000000) == (
        bundle_id(NAMESPACE, 0x00000000, 0x20000000),
        bundle_id(NAMESPACE, 0x20000000, 0x80000000),
    )


def test_each_limit_makes_a_bundle_too_large() -> None:
    rates = {f"t/n/0x0000000{n}_0x000000{n}f": Rates() for n in range(5)}
    names = [BundleId(name) for name in rates]
    rates[names[2]], rates[names[3]] = Rates(30_001.0), Rates(0.0, 0.0, 101 * MIB)
    reports = {
        BrokerId("a:1"): {
            names[0]: BundleStats(topics=1001),
            names[1]: BundleStats(topics=2, producers=600, consumers=401),
            names[2]: BundleStats(topics=2),
            names[3]: BundleStats(topics=2),
            names[4]: BundleStats(topics=1000, producers=1000),
        }
    }
    found = find_splits(SplitRules(), reports, rates.get, {NAMESPACE: 5})
    assert {one.bundle: one.excess for one in found.chosen} == {
        names[0]: "1001 topics",
        names[1]: "1001 sessions",
        names[2]: "30001 messages/s",
        names[3]: "105906176 bytes/s",
    }
    assert found.chosen[0].bundle == names[3]


def test_large_bundles_that_stay_whole_have_a_reason() -> None:
    sole, narrow = bundle_id(NAMESPACE, 0, 9), bundle_id(NAMESPACE, 9, 10)
    full, unread = BundleId("t/full/0x00000000_0x0000000f"), BundleId("t/x/0x00000000_0x0000000f")
    many = BundleStats(topics=5000)
    reports = {
        BrokerId("a:1"): {
            sole: BundleStats(topics=1, producers=5000),
            narrow: many,
            full: many,
            unread: many,
        }
    }
    counts = {NAMESPACE: 3, Namespace("t/full"): 128}
    found = find_splits(SplitRules(), reports, lambda _: None, counts)
    assert found.chosen == ()
    assert {one.subject: one.reason for one in found.refusals} == {
        sole: Reason.UNBALANCEABLE,
        narrow: Reason.UNBALANCEABLE,
        full: Reason.NAMESPACE_FULL,
        unread: Reason.NAMESPACE_UNKNOWN,
    }


def test_of_the_heaviest_none_are_listed_when_none_are_wanted() -> None:
    stats = {HALF: BundleStats(bytes_in_per_s=5e6)}
    assert [top.bundle for top in heaviest(Listing.of(stats), 1)] == [HALF]
    assert heaviest(Listing.of(stats), 0) == ()


FOUR = Boundaries.even(NAMESPACE, 4)
FIRST, SECOND, THIRD, LAST = FOUR.bundles
BOTH = Merge(FIRST, SECOND)


@given(st.integers(2, 200), st.data())
def test_a_merge_undoes_a_split_and_keeps_the_version(count: int, data: st.DataObject) -> None:
    before = Boundaries(NAMESPACE, Boundaries.even(NAMESPACE, count).bounds, 7)
    at = data.draw(st.integers(0, count - 2))
    both = neighbours(before, before.bundles[at + 1], before.bundles[at])
    after = merge(before, both)
    assert after.version == 7
    assert after.bundles[at] == both.whole
    assert len(after.bundles) == count - 1
    assert split(after, both.whole, [range_of(both.upper)[0]]) == before


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (FIRST, THIRD, "not adjacent"),
        (LAST, FIRST, "not adjacent"),
        (FIRST, FIRST, "not adjacent"),
        (BundleId("t/n/0x00000000_0x20000000"), SECOND, "no bundle of t/n now"),
        (FIRST, BundleId("t/mails/0x40000000_0x80000000"), "no bundle of t/n now"),
    ],
)
def test_neighbours_of_a_namespace_are_merged(one: BundleId, other: BundleId, says: str) -> None:
    with pytest.raises(CannotMerge, match=says):
        neighbours(FOUR, one, other)


def test_a_single_bundle_and_one_that_was_merged_or_cut_since_have_no_neighbour() -> None:
    single = Boundaries.even(NAMESPACE, 1)
    with pytest.raises(CannotMerge, match="has a single bundle"):
        neighbours(single, single.bundles[0], single.bundles[0])
    with pytest.raises(CannotMerge, match="no bundle of"):
        merge(merge(FOUR, BOTH), BOTH)


def test_the_order_is_kept_as_two_split_orders_of_a_kind_that_nobody_can_ask_for() -> None:
    orders = Orders(3, frozenset(BOTH.halves), splits=BOTH.orders())
    read = decode_orders("where", encode_orders(orders))
    assert merges_in(read.splits) == (BOTH,)
    assert {whole_ordered(half, order) for half, order in read.splits.items()} == {BOTH.whole}
    assert {order.algorithm for order in read.splits.values()}.isdisjoint(SPLIT_ALGORITHMS)


@pytest.mark.parametrize(
    "orders",
    [
        *({alone: BOTH.orders()[alone]} for alone in BOTH.halves),
        {
            FIRST: SplitOrder("merge_with_next", (0x80000000,)),
            bundle_id(NAMESPACE, 0x50000000, 0x80000000): SplitOrder("merge_with_former", (0,)),
        },
    ],
    ids=["for the lower half", "for the upper half", "with a gap between"],
)
def test_an_order_that_is_no_merge(orders: dict[BundleId, SplitOrder]) -> None:
    assert merges_in(orders) == ()


@pytest.mark.parametrize(
    "order",
    [
        SplitOrder("range_equally_divide"),
        SplitOrder("merge_with_next"),
        SplitOrder("merge_with_next", (0x80000000,)),
        SplitOrder("merge_with_next", (2**32,)),
        SplitOrder("merge_with_next", (0xC0000000, 0xD0000000)),
        SplitOrder("merge_with_former", (-1,)),
        SplitOrder("merge_with_former", (0x40000000,)),
    ],
)
def test_what_is_no_order_to_merge_names_no_whole(order: SplitOrder) -> None:
    assert whole_ordered(SECOND, order) is None
    assert merges_in({SECOND: order}) == ()


def test_several_merges_are_told_apart() -> None:
    others = Merge(THIRD, LAST)
    assert set(merges_in({**others.orders(), **BOTH.orders()})) == {BOTH, others}


@pytest.mark.parametrize(
    ("stats", "excess"),
    [
        (BundleStats(topics=500), ""),
        (BundleStats(topics=501), "1002 topics"),
        (BundleStats(topics=2, producers=300, consumers=201), "1002 sessions"),
        (BundleStats(topics=2, msgs_in_per_s=10_000, msgs_out_per_s=6_000), "32000 messages/s"),
        (BundleStats(bytes_in_per_s=4e7, bytes_out_per_s=2e7), "120000000 bytes/s"),
    ],
)
def test_the_sum_of_both_decides_whether_it_would_be_cut(stats: BundleStats, excess: str) -> None:
    assert cut_again(SplitRules(), stats, stats) == excess


def test_a_half_was_merged_if_the_whole_that_was_ordered_is_a_bundle() -> None:
    orders, after = BOTH.orders(), merge(FOUR, BOTH)
    whole = after.at(range_of(BOTH.lower)[0])
    assert [merged_by_order(half, orders, after) for half in BOTH.halves] == [whole, whole]
    assert merged_by_order(BOTH.lower, orders, FOUR) is None
    assert merged_by_order(BOTH.lower, {}, after) is None
    assert merged_by_order(BOTH.lower, {BOTH.lower: SplitOrder("even")}, after) is None
