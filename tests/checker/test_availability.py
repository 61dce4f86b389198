from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from plain_spells import quarters, spell

from loadmanager.core.ids import BundleId, range_of
from loadmanager.reference_broker.changes import ServingInterval
from tests.testbed.checker.availability import (
    Disturbance,
    Gap,
    Segment,
    gaps,
    recovery_s,
    unaccounted,
)

WHOLE = quarters(0, 4)


def times(spells: list[ServingInterval], bundle: BundleId = WHOLE) -> list[tuple[float, float]]:
    return [(gap.start_s, gap.end_s) for gap in gaps(spells, [bundle], from_s=0, until_s=20)]


def test_a_bundle_that_is_served_all_the_time_has_no_gap() -> None:
    assert times([spell(-1, 9), spell(9, 12, by="b2"), spell(11, 25)]) == []


def test_a_bundle_that_nobody_ever_served_is_one_gap() -> None:
    assert times([]) == [(0, 20)]


def test_the_time_between_two_owners_is_a_gap() -> None:
    assert times([spell(0, 5), spell(7, 20, by="b2")]) == [(5, 7)]


def test_a_gap_at_the_end_lasts_until_the_end() -> None:
    assert times([spell(0, 15)]) == [(15, 20)]


def test_what_was_before_and_is_after_does_not_count() -> None:
    assert times([spell(-9, -5), spell(25, 30)]) == [(0, 20)]


def test_a_short_spell_within_a_long_one_ends_nothing() -> None:
    assert times([spell(0, 20), spell(3, 4, by="b2")]) == []


def test_the_parts_of_a_bundle_serve_it_together() -> None:
    left, right = quarters(0, 2), quarters(2, 4)
    spells = [spell(0, 5), spell(5, 20, bundle=left), spell(6, 20, bundle=right)]
    (gap,) = gaps(spells, [WHOLE], from_s=0, until_s=20)
    assert str(gap) == f"{right}, which b1:8080 lost, was not served for 1.000 s from 5.000 s"


def test_a_bundle_that_is_not_expected_may_be_free() -> None:
    left = quarters(0, 2)
    assert times([spell(0, 20, bundle=left), spell(0, 5)], left) == []


AT = Segment(*("t/n", 0, 1))  # type: ignore[arg-type]  # a text is name enough here
LOST = Gap(5, 9, AT, "b1:8080")
LET_GO = Gap(5, 9, AT, "b1:8080", handed_over=True)
KILL = Disturbance(what="kill", began_s=4, healed_s=4, within_s=5)


def test_a_gap_tells_who_left_and_whether_it_was_told_to() -> None:
    lost, let_go = (
        gaps([spell(0, 5, let_go=told), spell(7, 20, by="b2")], [WHOLE], from_s=0, until_s=20)
        for told in (False, True)
    )
    assert [(gap.left_by, gap.handed_over) for gap in (*lost, *let_go)] == [
        ("b1:8080", False),
        ("b1:8080", True),
    ]


def test_a_gap_within_a_disturbances_time_is_accounted_for() -> None:
    assert unaccounted([LOST, LET_GO], [KILL], hand_over_s=1) == []


def test_what_was_lost_before_the_disturbance_is_not() -> None:
    late = Disturbance(what="kill", began_s=5.1, healed_s=5.1, within_s=5)
    assert unaccounted([LOST], [late], hand_over_s=1) == [LOST]


def test_a_hand_over_that_the_disturbance_hit_is_accounted_for() -> None:
    late = Disturbance(what="kill", began_s=6, healed_s=6, within_s=5)
    assert unaccounted([LET_GO], [late], hand_over_s=1) == []
    assert unaccounted([LET_GO], [late], hand_over_s=0.9) == [LET_GO]


def test_what_a_broker_lost_that_was_not_hit_is_not() -> None:
    other = Disturbance(
        what="kill", began_s=4, healed_s=4, within_s=5, brokers=frozenset({"b2:8080"})
    )
    assert unaccounted([LOST], [other], hand_over_s=1) == [LOST]
    # It may have been on its way to the one that was.
    assert unaccounted([LET_GO], [other], hand_over_s=1) == []


def test_a_gap_that_outlasts_its_disturbance_is_not() -> None:
    short = Disturbance(what="kill", began_s=4, healed_s=4, within_s=4.5)
    assert unaccounted([LOST, LET_GO], [short], hand_over_s=1) == [LOST, LET_GO]


def test_a_short_hand_over_needs_no_disturbance_and_a_loss_does_however_short() -> None:
    assert unaccounted([LET_GO], [], hand_over_s=4) == []
    assert unaccounted([LET_GO], [], hand_over_s=3.9) == [LET_GO]
    assert unaccounted([LOST], [], hand_over_s=4) == [LOST]


def test_recovery_counts_from_healing_to_the_last_gaps_end() -> None:
    assert recovery_s([LOST], KILL, hand_over_s=0) == 5
    healed = Disturbance(what="outage", began_s=4, healed_s=7, within_s=5)
    assert recovery_s([LOST], healed, hand_over_s=0) == 2


def test_a_disturbance_that_freed_nothing_took_no_time() -> None:
    assert recovery_s([], KILL, hand_over_s=0) == 0
    assert recovery_s([LET_GO], KILL, hand_over_s=4) == 0
    assert recovery_s([LET_GO], KILL, hand_over_s=3.9) == 5
    assert recovery_s([LOST], KILL, hand_over_s=4) == 5
    later = Disturbance(what="kill", began_s=9, healed_s=9, within_s=5)
    assert recovery_s([LOST], later, hand_over_s=0) == 0
    hit = Disturbance(what="kill", began_s=8, healed_s=8, within_s=5)
    assert recovery_s([LOST], hit, hand_over_s=0) == 1


spells = st.builds(
    lambda start, length, pair: spell(start, start + length, bundle=quarters(*pair)),
    st.integers(0, 18),
    st.integers(0, 9),
    st.sampled_from([*combinations(range(5), 2)]),
)


@settings(max_examples=300)
@given(served=st.lists(spells, max_size=9))
def test_free_time_is_that_found_second_by_second(served: list[ServingInterval]) -> None:
    found = gaps(served, [WHOLE], from_s=2, until_s=15)
    free = {
        (second, quarter)
        for gap in found
        for second in range(int(gap.start_s), int(gap.end_s))
        for quarter in range(4)
        if gap.segment.lower <= range_of(quarters(quarter, quarter + 1))[0] < gap.segment.upper
    }
    by_hand = {
        (second, quarter)
        for second in range(2, 15)
        for quarter in range(4)
        if not any(_serves(one, second, quarter) for one in served)
    }
    assert free == by_hand


def _serves(one: ServingInterval, second: int, quarter: int) -> bool:
    lower, upper = range_of(one.bundle)
    at = range_of(quarters(quarter, quarter + 1))[0]
    return lower <= at < upper and one.start_s <= second < one.end_s
