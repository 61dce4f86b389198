"""A late recovery counts against the product, unless the machine itself stood still for as long."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fault_outcomes import Finding, finding
from fault_stalls import REST_S, SLOW, Stalls
from plain_spells import WHOLE, publish, spell

from tests.testbed.checker.availability import Disturbance
from tests.testbed.checker.verdict import History, judge

BEST_S = REST_S + 0.002
KILL = Disturbance(what="kill b1", began_s=10, healed_s=10, within_s=4)
LATE = History(
    intervals=[spell(0, 10, token=3), spell(15, 60, by="b2", token=5)],
    publishes=[],
    hash_name="murmur3",
    bundles=[WHOLE],
    from_s=1,
    until_s=50,
    disturbances=[KILL],
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
    assert finding(judge(history), KILL, turns(tmp_path, *late)) is found


def test_many_small_delays_are_no_stall(tmp_path: Path) -> None:
    small = [(11 + 0.1 * number, 0.09) for number in range(20)]
    quick = turns(tmp_path, *small).between(10, 10.5)
    assert quick.stalled_s == 0


def test_a_machine_at_half_its_speed_leaves_it_open(tmp_path: Path) -> None:
    slow = turns(tmp_path, best_s=REST_S + (BEST_S - REST_S) * SLOW * 1.1)
    assert finding(judge(LATE), KILL, slow) is Finding.INCONCLUSIVE
    later = replace(LATE, intervals=[LATE.intervals[0], spell(16, 60, by="b2", token=5)])
    assert finding(judge(later), KILL, slow) is Finding.BROKEN


def test_a_time_nobody_watched_explains_what_was_late_in_it(tmp_path: Path) -> None:
    assert turns(tmp_path).between(100, 103).explains(3.0)
