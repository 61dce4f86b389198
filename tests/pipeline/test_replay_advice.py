"""What a replay advises: only what enough history vouches for, and with what is behind it."""

from dataclasses import replace
from typing import Any

import planted_advice
import pytest
from planted_advice import PAIRS, STILL
from replayed import events, simulated

from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.replay.advice import Advice, Verdict, advised, sentences
from loadmanager.pipeline.replay.combinations import combinations, spread_anew
from loadmanager.pipeline.replay.results import Found
from loadmanager.pipeline.replay.scores import SCORE_NAMES, Scores
from loadmanager.pipeline.replay.segment_replay import SegmentReplay
from loadmanager.pipeline.replay.trust import Evidence, Level

OTHER = "avg+avg"
TRIED = spread_anew(combinations([STILL, OTHER], []))
AS_RECORDED, STILL_AT, OTHER_AT, USUAL = 0, 1, 2, 3
STRETCHES = 12

SOUND = Evidence(
    rounds=300,
    refused={},
    covered_s=5 * 3600.0,
    decisions=40,
    bases=20,
    reproduced=20,
    difference="",
    changed={**dict.fromkeys(RESOURCES), "cpu": 0.02},
    unchanged=dict.fromkeys(RESOURCES),
    changed_count=40,
)


def scores(penalty: float, **more: Any) -> Scores:
    usual = dict.fromkeys(SCORE_NAMES, 0)
    return Scores(
        **{
            **usual, "rounds": 100, "covered_s": 7200.0, "penalty": penalty, "away": 0.8,
            "moves": 20, "max_over_mean": 1.2, **more,
        }
    )  # fmt: skip


def found(*, other: float = 0.5, better: int = STRETCHES, **changes: Any) -> Found:
    """Return a replay in which ``OTHER`` was better in some stretches."""
    told = {-1: 1.0, AS_RECORDED: 1.02, STILL_AT: 1.5, OTHER_AT: other, USUAL: 1.0}
    stretches = {
        number: {str(at): penalty for at in range(STRETCHES)} for number, penalty in told.items()
    }
    stretches[OTHER_AT] = {str(at): 0.5 if at < better else 1.5 for at in range(STRETCHES)}
    return Found(
        scores={number: scores(penalty) for number, penalty in told.items()},
        evidence=replace(SOUND, **changes),
        stretches=stretches,
    )


def advice(of: Found) -> Advice:
    return advised(of, SegmentReplay(combinations=TRIED))


def test_what_is_clearly_better_is_advised_with_what_is_behind_it() -> None:
    got = advice(found())
    assert (got.verdict, got.name, got.sure) == (Verdict.TRY, OTHER, Level.FAIR)
    assert got.text == (
        "Try avg+avg, observing first: 50 % less penalty than the strategy in force (penalty "
        "0.500, max/mean 1.20, against penalty 1.00, max/mean 1.20)."
    )
    assert "5.0 h of history with 40 recorded moves" in got.rests_on
    assert f"better in {STRETCHES} of {STRETCHES} stretches" in got.rests_on
    assert "off by 2 %" in got.rests_on
    assert got.costs.startswith("Each hour 10 moves, 0 connections made again")
    heads = [line.partition(":")[0] for line in sentences(got)[1:]]
    assert heads == ["  rests on", "  costs", "  how sure"]
    noted = {name: getattr(got, name) for name in ("text", "name", "rests_on", "costs", "because")}
    assert Advice.of({"verdict": "try", "sure": "fair", **noted}) == got


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        (
            {"covered_s": 47.0, "decisions": 3},
            "it needs 4.0 h of history and 20 decisions to move a bundle; has 47 s and 3",
        ),
        ({"decisions": 19}, "has 5.0 h and 19"),
        ({"reproduced": 10}, "only 50% of the base rounds were decided again as recorded"),
    ],
)
def test_nothing_is_advised_without_enough_to_go_by(changes: dict[str, Any], needs: str) -> None:
    got = advice(found(**changes))
    assert (got.verdict, got.name) == (Verdict.NONE, "")
    assert got.text.startswith("No advice: ")
    assert needs in got.text
    assert sentences(got) == [got.text]


def test_nothing_is_advised_if_nothing_was_scored_or_too_few_stretches() -> None:
    whole = found()
    unscored = replace(
        whole, scores={at: replace(one, rounds=0) for at, one in whole.scores.items()}
    )
    assert advice(unscored).text == (
        "No advice: nothing was replayed for longer than the 30 min in which bundles settle."
    )
    few = {at: dict(list(each.items())[:7]) for at, each in whole.stretches.items()}
    got = advice(replace(whole, stretches=few))
    assert got.text == "No advice: it needs 8 stretches of 10 min to compare in; has 7."


@pytest.mark.parametrize("less", [{"other": 0.91}, {"better": 9}])
def test_what_is_not_clearly_better_is_not_advised(less: dict[str, Any]) -> None:
    got = advice(found(**less))
    assert (got.verdict, got.name) == (Verdict.STAY, OTHER)
    assert got.text.startswith("Keep the strategy that is in force: none is clearly better.")
    assert got.costs == "Nothing."


def test_a_strategy_that_moves_nothing_is_not_advised_however_well_it_scores() -> None:
    whole = found()
    still = scores(0.1, moves=0)
    got = advice(
        replace(
            whole,
            scores={**whole.scores, STILL_AT: still},
            stretches={**whole.stretches, STILL_AT: dict.fromkeys(map(str, range(12)), 0.1)},
        )
    )
    assert (got.verdict, got.name) == (Verdict.TRY, OTHER)


def test_a_short_history_gives_no_advice() -> None:
    got = planted_advice.advice(planted_advice.late(events(simulated()), 900.0), PAIRS)
    assert (got.verdict, got.name) == (Verdict.NONE, "")
    assert "4.0 h of history and 20 decisions to move a bundle; has 14 min and 0" in got.text


def test_advice_on_a_planted_case_is_what_its_simulations_come_to() -> None:
    """One case of the table in docs/pipeline.md: its bench has all."""
    busy = planted_advice.cases(6)["busy: 8 brokers of two sizes, 96 bundles"]
    good, poor = PAIRS[0], PAIRS[2]
    (got,) = planted_advice.tried(busy, [3], pairs=(good, poor), recorded=[poor])
    assert (got.advice.verdict, got.outcome) == (Verdict.TRY, "better")
    assert got.real[good] < 0.8 * got.real[poor]
    assert planted_advice.table({"busy": [got]}).splitlines()[-1].startswith("| busy | 1 | 1 | 0 |")
