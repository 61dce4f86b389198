"""Merging two bundles: boundaries, the order's form, and what would be cut again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, Namespace, bundle_id, range_of
from loadmanager.core.load import BundleStats
from loadmanager.core.orders import Orders, SplitOrder, decode_orders, encode_orders
from loadmanager.core.splitting.cutting import split
from loadmanager.core.splitting.finder import SplitRules
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
from loadmanager.core.splitting.positions import SPLIT_ALGORITHMS

NAMESPACE = Namespace("acme/orders")
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
        (BundleId("acme/orders/0x00000000_0x20000000"), SECOND, "no bundle of acme/orders now"),
        (FIRST, BundleId("acme/mails/0x40000000_0x80000000"), "no bundle of acme/orders now"),
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
