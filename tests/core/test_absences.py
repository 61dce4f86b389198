"""Which absent brokers are waited for."""

from dataclasses import replace

from loadmanager.core.absences import TRY_AGAIN_S, AbsenceRules, Absences, Drains
from loadmanager.core.ids import BrokerId, parse_bundle

A, B, C, D = (BrokerId(f"{name}:1") for name in "abcd")
RULES = AbsenceRules(return_wait_s=10.0, max_lost_fraction=0.4, session_s=30.0)
JUST_CONNECTED = replace(RULES, connected_s=104.0)


def missed(*gone: BrokerId) -> Absences:
    absences = Absences()
    absences.observe(100.0, set(gone), [one for one in (B, C, D) if one not in gone], RULES)
    return absences


def test_one_broker_that_vanished_is_not_waited_for() -> None:
    absences = Absences()
    assert absences.observe(100.0, {A}, [B, C, D], RULES) == {}
    assert absences.awaited_until_s == {}


def test_many_that_vanished_together_are_waited_for_from_when_each_was_missed() -> None:
    absences = missed(A)
    assert absences.observe(103.0, {A, B}, [C, D], RULES) == {A: 7.0, B: 10.0}
    assert absences.observe(104.0, {A, B}, [C, D], RULES) == {}
    assert absences.awaited_until_s == {A: 110.0, B: 113.0}


def test_a_wait_is_not_cut_short_when_others_return() -> None:
    absences = missed(A, B)
    absences.observe(101.0, {A}, [B, C, D], RULES)
    assert absences.awaited_until_s == {A: 110.0}


def test_a_broker_missed_longer_ago_than_a_session_does_not_count_with_another() -> None:
    absences = missed(A)
    absences.observe(110.0, set(), [B, C, D], RULES)
    absences.observe(131.0, set(), [B, C, D], RULES)
    assert absences.observe(131.0, {B}, [C, D], RULES) == {}


def test_a_leader_that_has_just_connected_waits_for_a_single_broker_as_well() -> None:
    absences = Absences()
    assert absences.observe(100.0, {A}, [B, C, D], JUST_CONNECTED) == {A: 4.0}
    assert Absences().observe(104.0, {A}, [B, C, D], JUST_CONNECTED) == {}


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
