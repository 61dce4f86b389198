"""Changes of standing orders: what stands after them, and less of them."""

import pytest

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.orders import OrderChanges, SplitOrder

A, B, C, D = (BundleId(f"t/n/0x{n}0000000_0x{n + 1}0000000") for n in range(4))
B1, B2 = BrokerId("b1:8080"), BrokerId("b2:8080")
CUT = SplitOrder("range_equally_divide")


@pytest.mark.parametrize(
    ("changes", "any_change"),
    [
        (OrderChanges(), False),
        (OrderChanges({A: B1}), True),
        (OrderChanges(splits={A: None}), True),
        (OrderChanges(gone=[A]), True),
    ],
)
def test_changes_say_whether_they_change_anything(changes: OrderChanges, any_change: bool) -> None:
    assert bool(changes) is any_change


def test_what_is_gone_has_neither_a_broker_nor_a_split() -> None:
    changes = OrderChanges({B: B2}, {A: None, C: CUT}, gone=[D])
    assert changes.apply({A: B1, B: B1, C: B1, D: B1}, {A: CUT, D: CUT}) == (
        {A: B1, B: B2, C: B1},
        {C: CUT},
    )


def test_a_split_of_a_bundle_without_a_broker_is_not_ordered() -> None:
    assert OrderChanges(splits={A: CUT}).apply({B: B1}, {}) == ({B: B1}, {})


def test_of_a_full_broker_half_is_left_and_of_the_others_all() -> None:
    changes = OrderChanges(
        {A: B1, B: B1, C: B1, D: B2}, {A: CUT, D: CUT, C: CUT}, gone=[BundleId("t/n/gone")]
    )
    less = changes.less({B1}, {C: B2, BundleId("t/n/gone"): B1})
    assert less == OrderChanges({A: B1, D: B2}, {D: CUT}, frozenset())
    assert less.less({B1}, {}).assigned == {D: B2}


def test_nothing_is_split_or_taken_back_in_orders_that_are_full() -> None:
    changes = OrderChanges(splits={A: CUT, B: CUT, C: CUT}, gone=[A, B])
    assert changes.less({B1}, {A: B1, B: B2}) == OrderChanges({}, {B: CUT, C: CUT}, frozenset({B}))
