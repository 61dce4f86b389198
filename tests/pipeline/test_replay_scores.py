"""Scores of combinations, and how far they can be trusted."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from replayed import columns

from loadmanager.core.plan import Cause
from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.replay.measures import Ledger, Line, Moved, measure
from loadmanager.pipeline.replay.recorded_rounds import ERROR_COLUMNS
from loadmanager.pipeline.replay.scores import percentile, scores_of
from loadmanager.pipeline.replay.trust import Evidence, Level, evidence_of, judged

SOUND = Evidence(
    rounds=100,
    refused={},
    covered_s=4 * 3600.0,
    decisions=40,
    bases=10,
    reproduced=10,
    difference="",
    changed={**dict.fromkeys(RESOURCES), "cpu": 0.02},
    unchanged=dict.fromkeys(RESOURCES),
    changed_count=20,
)


def line(**fields: Any) -> Line:
    return Line(**{"combination": 0, "at_ms": 0, "weight_s": 60.0, **fields})


def test_loads_are_measured_against_their_mean() -> None:
    one = line()
    measure(one, np.array([0.9, 0.3, 0.3]), 0.85)
    assert one.max_over_mean == pytest.approx(1.8)
    assert one.deviation == pytest.approx(np.sqrt(0.08) / 0.5)
    assert (one.largest, one.overload_broker_s, one.broker_s) == (0.9, 60.0, 180.0)


def test_an_idle_cluster_is_even_and_an_empty_one_says_nothing() -> None:
    idle, empty = line(), line()
    measure(idle, np.zeros(3), 0.85)
    measure(empty, np.zeros(0), 0.85)
    assert (idle.max_over_mean, idle.deviation) == (1.0, 0.0)
    assert empty == line()


def test_scores_weigh_each_round_by_how_long_it_stood() -> None:
    rows = [
        line(weight_s=300.0, max_over_mean=1.0, broker_s=600.0, bytes_per_s=100.0),
        line(
            weight_s=100.0,
            max_over_mean=2.0,
            broker_s=200.0,
            overload_broker_s=80.0,
            bytes_per_s=100.0,
            moves=3,
            returned=1,
            moved_bytes_per_s=50.0,
            returned_bytes_per_s=10.0,
        ),
    ]
    found = scores_of(columns([asdict(one) for one in rows]))
    assert (found.rounds, found.covered_s, found.moves, found.returned) == (2, 400.0, 3, 1)
    assert found.max_over_mean == pytest.approx(1.25)
    assert found.max_over_mean_p95 == 2.0
    assert found.overload_fraction == pytest.approx(0.1)
    # Half of the traffic in 400 s is 4.5 times all of it in an hour.
    assert found.moved_per_hour == pytest.approx(4.5)
    assert found.penalty == pytest.approx(0.25 + 0.5 + 0.2 + 0.1 * (4.5 + 0.9))


def test_a_percentile_is_one_of_time() -> None:
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([5.0, 90.0, 5.0])
    assert percentile(values, weights, 0.90) == 1.0
    assert percentile(values, weights, 0.95) == 2.0
    assert percentile(values, weights, 0.951) == 3.0
    assert percentile(np.zeros(0), np.zeros(0), 0.95) == 0.0


class Traffic:
    """A frame, as far as the ledger looks at it."""

    rates = np.array([[0.0, 0.0, 10.0, 20.0, 4.0, 7.0]])

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s


def test_a_bundle_that_is_back_within_the_hour_was_moved_in_vain() -> None:
    ledger, found = Ledger(), []
    for at_s, source, target, cause in (
        (0.0, 1, 2, Cause.OVERLOADED),
        (3600.0, 2, 1, Cause.IMBALANCE),
        (7201.0, 1, 2, Cause.OVERLOADED),
        (7202.0, 2, 1, Cause.DRAINING),
        (7203.0, -1, 2, Cause.UNOWNED),
        (7204.0, 2, 1, Cause.REQUESTED),
    ):
        one = line()
        ledger.count(one, Traffic(at_s), [Moved(0, source, target, cause)])  # type: ignore[arg-type]  # all that it reads
        found.append((one.moves, one.returned, one.drained, one.placed, one.moved_bytes_per_s))
    assert found == [
        (1, 0, 0, 0, 30.0),
        (1, 1, 0, 0, 30.0),
        (1, 0, 0, 0, 30.0),
        (0, 0, 1, 0, 0.0),
        (0, 0, 0, 1, 0.0),
        (0, 0, 0, 0, 0.0),
    ]


def test_evidence_adds_up() -> None:
    sums = [0.0] * len(ERROR_COLUMNS)
    sums[ERROR_COLUMNS.index(("changed", "cpu", "sum"))] = 0.3
    sums[ERROR_COLUMNS.index(("changed", "cpu", "count"))] = 3.0
    rows = [
        line(reproduced=True, errors=sums),
        line(reproduced=False, note="round 2: otherwise", errors=sums),
        line(),
        line(refused="no_base_yet"),
        line(refused="report_missing", note="b-1"),
        line(refused="no_base_yet"),
    ]
    found = evidence_of(columns([asdict(one) for one in rows]))
    assert (found.rounds, found.refused) == (6, {"no_base_yet": 2, "report_missing": 1})
    assert (found.bases, found.reproduced, found.difference) == (2, 1, "round 2: otherwise")
    assert found.changed["cpu"] == pytest.approx(0.1)
    assert found.unchanged["cpu"] is None
    assert found.changed_count == 6
    assert (found.covered_s, found.decisions) == (180.0, 0)
    assert (found.refused_fraction, found.reproduced_fraction) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("changes", "away", "level", "word"),
    [
        ({}, 0.02, Level.HIGH, "all but 2%"),
        ({}, 0.3, Level.FAIR, "30% of the traffic lay elsewhere"),
        ({}, 0.8, Level.FAIR, "80% of the traffic lay elsewhere"),
        ({"changed": {**SOUND.changed, "cpu": 0.07}}, 0.8, Level.LOW, "80%"),
        ({"changed": {**SOUND.changed, "cpu": 0.07}}, 0.02, Level.FAIR, "to 7.0 points"),
        ({"changed": {**SOUND.changed, "cpu": 0.2}}, 0.02, Level.LOW, "to 20.0 points"),
        ({"changed": {**SOUND.changed, "memory": 0.2}}, 0.02, Level.HIGH, "to 2.0 points"),
        ({"changed": dict.fromkeys(RESOURCES)}, 0.3, Level.LOW, "no recorded change"),
        ({"refused": {"no_base_yet": 20}}, 0.02, Level.LOW, "20% of the rounds"),
        ({"bases": 1000, "reproduced": 999}, 0.02, Level.LOW, "0.1% of the base rounds"),
        ({"reproduced": 9}, 0.02, Level.NONE, "only 90% of the base rounds"),
        ({"bases": 0, "reproduced": 0}, 0.02, Level.NONE, "no base round"),
        ({"covered_s": 47.0}, 0.02, Level.NONE, "4.0 h of history and 20"),
        ({"decisions": 3}, 0.02, Level.NONE, "has 4.0 h and 3"),
    ],
)
def test_trust_is_as_high_as_its_weakest_reason(
    changes: dict[str, Any], away: float, level: Level, word: str
) -> None:
    got, because = judged(replace(SOUND, **changes), away)
    assert got is level
    assert word in because
