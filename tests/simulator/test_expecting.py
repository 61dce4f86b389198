from typing import Any

import pytest

from loadmanager.simulator.results import SCORE_DOCS
from loadmanager.simulator.scenario import Expectation
from loadmanager.simulator.simulation_jobs import Compared, Judged, Outcome, Spread, judged
from loadmanager.simulator.strategies import Mode, Strategy

PAIR = "threshold+round_robin"


def found(spread: Spread, pair: str = PAIR, mode: Mode = "safe", seeds: int = 3) -> Compared:
    return Compared(
        name="two",
        strategy=Strategy.parse(pair, mode),
        seeds=tuple(range(seeds)),
        runs=(),
        spreads=dict.fromkeys(SCORE_DOCS, spread),
    )


def judge(spread: Spread, **expected: Any) -> Judged:
    (one,) = judged([Expectation(score="moves", **expected)], found(spread))
    return one


@pytest.mark.parametrize(
    ("median", "expected", "outcome"),
    [
        (5.0, {"most": 5}, Outcome.HELD),
        (5.1, {"most": 5}, Outcome.FAILED),
        (5.0, {"least": 5}, Outcome.HELD),
        (4.9, {"least": 5}, Outcome.FAILED),
        (4.9, {"least": 4, "most": 5}, Outcome.HELD),
        (3.9, {"least": 4, "most": 5}, Outcome.FAILED),
        (None, {"most": 1e9}, Outcome.FAILED),
        (None, {"least": 60}, Outcome.HELD),
        (400, {"least": 100, "known_failure": "it sheds for ever"}, Outcome.SHOWN),
        (40, {"least": 100, "known_failure": "it sheds for ever"}, Outcome.NOT_SHOWN),
    ],
)
def test_the_median_has_to_lie_within_the_bounds(
    median: float | None, expected: dict[str, Any], outcome: Outcome
) -> None:
    one = judge(Spread(median, 0.0, None), **expected)
    assert one.outcome is outcome
    assert one.holds is (outcome in {Outcome.HELD, Outcome.SHOWN})


@pytest.mark.parametrize(
    ("patterns", "mode", "speaks"),
    [
        (("*",), None, True),
        ((PAIR,), None, True),
        (("threshold+*",), "safe", True),
        (("avg+*", "*+round_robin"), "safe", True),
        (("avg+*",), None, False),
        (("*",), "parity", False),
    ],
)
def test_only_expectations_of_a_strategy_and_its_mode_are_held_against_it(
    patterns: tuple[str, ...], mode: Mode | None, *, speaks: bool
) -> None:
    one = Expectation(score="gap", most=1, strategies=patterns, mode=mode)
    assert bool(list(judged([one], found(Spread(0.0, 0.0, 0.0))))) is speaks


def test_it_says_what_was_expected_and_what_was_found() -> None:
    (one,) = judged(
        [Expectation(score="balance_s", least=60, most=600)], found(Spread(1234.5678, 12.0, None))
    )
    assert str(one) == (
        "failed: two: threshold+round_robin, safe: expected balance_s at least 60 and at most 600 "
        "s; found 1235 (12 to never over 3 seeds)"
    )


def test_a_known_failure_is_told_in_its_own_words() -> None:
    (one,) = judged(
        [Expectation(score="moves", least=100, known_failure="sheds far too much")],
        found(Spread(432.0, 432.0, 432.0), mode="parity", seeds=1),
    )
    assert str(one) == (
        "known failure shown: two: threshold+round_robin, parity: expected moves at least 100; "
        "found 432 (sheds far too much)"
    )
