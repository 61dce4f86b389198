"""Which bundles leave draining brokers next."""

from loadmanager.core.absences import TRY_AGAIN_S, Drains
from loadmanager.core.ids import BrokerId, parse_bundle

A, B = BrokerId("a:1"), BrokerId("b:1")
ONE, TWO, THREE = (parse_bundle(f"t/n/0x{at}0000000_0x{at + 1}0000000") for at in (1, 2, 3))
STAYING = [(ONE, A), (TWO, A), (THREE, B)]


def test_no_more_bundles_leave_a_broker_than_may_be_under_way() -> None:
    assert Drains().due(STAYING, {A: 1, B: 1}, 0.0) == {ONE: A, THREE: B}
    assert Drains().due(STAYING, {A: 2, B: 0}, 0.0) == {ONE: A, TWO: A}


def test_what_no_broker_could_take_is_left_alone_for_a_moment() -> None:
    drains = Drains()
    drains.refused([ONE], 5.0)
    assert drains.due(STAYING, {A: 1, B: 0}, 5.0) == {TWO: A}
    assert drains.due(STAYING, {A: 1, B: 0}, 5.0 + TRY_AGAIN_S) == {ONE: A}


def test_the_next_drain_begins_anew() -> None:
    drains = Drains()
    drains.refused([ONE], 5.0)
    assert drains.due([], {}, 5.0) == {}
    assert drains.due(STAYING, {A: 1, B: 0}, 5.0) == {ONE: A}
