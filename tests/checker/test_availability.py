from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from fault_stalls import REST_S, SLOW, Stalls
from faults import Finding, finding
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_spells import WHOLE, publish, quarters, spell

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
from tests.testbed.checker.verdict import History, judge


def times(spells: list[ServingInterval], bundle: BundleId = WHOLE) -> list[tuple[float, float]]:
    return [(gap.start_s, gap.end_s) for gap in gaps(spells, [bundle], from_s=0, until_s=20)]


def test_the_parts_of_a_bundle_serve_it_together() -> None:
    left, right = quarters(0, 2), quarters(2, 4)
    spells = [spell(0, 5), spell(5, 20, bundle=left), spell(6, 20, bundle=right)]
    (gap,) = gaps(spells, [WHOLE], from_s=0, until_s=20)
    assert str(gap) == f"{right}, which b1:8080 lost, was not served for 1.000 s from 5.000 s"


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


def disturbed(began_s: float, within_s: float = 5, broker: str = "") -> list[Disturbance]:
    brokers = frozenset({broker} - {""})
    return [
        Disturbance(
            what="kill", began_s=began_s, healed_s=began_s, within_s=within_s, brokers=brokers
        )
    ]


@pytest.mark.parametrize(
    ("gap", "disturbances", "hand_over_s", "accounted"),
    [
        (LOST, [KILL], 1, True),
        (LET_GO, [KILL], 1, True),
        (LOST, disturbed(5.1), 1, False),
        (LET_GO, disturbed(6), 1, True),
        (LET_GO, disturbed(6), 0.9, False),
        (LOST, disturbed(4, broker="b2:8080"), 1, False),
        # It may have been on its way to the one that was hit.
        (LET_GO, disturbed(4, broker="b2:8080"), 1, True),
        (LOST, disturbed(4, 4.5), 1, False),
        (LET_GO, disturbed(4, 4.5), 1, False),
        (LET_GO, [], 4, True),
        (LET_GO, [], 3.9, False),
        (LOST, [], 4, False),
    ],
)
def test_a_gap_needs_a_disturbance_in_its_time_unless_it_is_a_short_hand_over(
    gap: Gap, disturbances: list[Disturbance], hand_over_s: float, accounted: bool
) -> None:
    assert (unaccounted([gap], disturbances, hand_over_s=hand_over_s) == []) is accounted


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


BEST_S = REST_S + 0.002
KILLED = Disturbance(what="kill b1", began_s=10, healed_s=10, within_s=4)
LATE = History(
    intervals=[spell(0, 10, token=3), spell(15, 60, by="b2", token=5)],
    publishes=[],
    hash_name="murmur3",
    bundles=[WHOLE],
    from_s=1,
    until_s=50,
    disturbances=[KILLED],
    hand_over_s=0.5,
)


def turns(folder: Path, *late: tuple[float, float], best_s: float = BEST_S) -> Stalls:
    """Return a watch of 50 s whose turns at these times were so much too late."""
    at_s = 0.0
    lines: list[str] = []
    waiting = list(late)
    while at_s < 50:
        took_s = best_s if lines else BEST_S
        if waiting and at_s >= waiting[0][0]:
            took_s += waiting.pop(0)[1]
        lines.append(f"{at_s:.4f} {took_s:.4f}\n")
        at_s += took_s
    record = folder / "clock.turns"
    record.write_text("".join(lines))
    return Stalls(record)


ALONE = replace(LATE, intervals=[spell(0, 30, token=3), spell(32, 60, by="b2", token=5)])
IN_TIME = replace(LATE, intervals=[LATE.intervals[0], spell(13.9, 60, by="b2", token=5)])


@pytest.mark.parametrize(
    ("history", "late", "found"),
    [
        (LATE, [], Finding.BROKEN),
        (LATE, [(12, 1.1)], Finding.INCONCLUSIVE),
        (LATE, [(12, 0.9)], Finding.BROKEN),
        (LATE, [(20, 2.0)], Finding.BROKEN),
        # A loss without a fault.
        (ALONE, [], Finding.BROKEN),
        (ALONE, [(28, 2.1)], Finding.INCONCLUSIVE),
        (IN_TIME, [(12, 5.0)], Finding.KEPT),
        # No machine excuses two owners, none, or a token that goes back.
        (
            replace(LATE, intervals=[spell(0, 16, token=3), LATE.intervals[1]]),
            [(12, 5.0)],
            Finding.BROKEN,
        ),
        (replace(LATE, publishes=[publish(12, token=3)]), [(12, 5.0)], Finding.BROKEN),
        (
            replace(LATE, intervals=[LATE.intervals[0], spell(15, 60, by="b2", token=2)]),
            [(12, 5.0)],
            Finding.BROKEN,
        ),
    ],
)
def test_only_a_machine_that_stood_still_then_and_for_as_long_leaves_a_run_open(
    tmp_path: Path, history: History, late: Sequence[tuple[float, float]], found: Finding
) -> None:
    assert finding(judge(history), KILLED, turns(tmp_path, *late)) is found


def test_many_small_delays_are_no_stall(tmp_path: Path) -> None:
    small = [(11 + 0.1 * number, 0.09) for number in range(20)]
    quick = turns(tmp_path, *small).between(10, 10.5)
    assert quick.stalled_s == 0


def test_a_machine_at_half_its_speed_leaves_it_open(tmp_path: Path) -> None:
    slow = turns(tmp_path, best_s=REST_S + (BEST_S - REST_S) * SLOW * 1.1)
    assert finding(judge(LATE), KILLED, slow) is Finding.INCONCLUSIVE
    later = replace(LATE, intervals=[LATE.intervals[0], spell(16, 60, by="b2", token=5)])
    assert finding(judge(later), KILLED, slow) is Finding.BROKEN


def test_a_time_nobody_watched_explains_what_was_late_in_it(tmp_path: Path) -> None:
    assert turns(tmp_path).between(100, 103).explains(3.0)
