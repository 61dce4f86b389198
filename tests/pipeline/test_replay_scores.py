"""Scores of combinations, how far they can be trusted, and what a replay advises."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import planted_advice
import pytest
from planted_advice import STILL
from replayed import columns, events, simulated

from loadmanager.config import ConfigError
from loadmanager.config.strategies import PAIRS
from loadmanager.core.plan import Cause
from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.replay.combinations import (
    AS_RECORDED,
    Combination,
    combinations,
    spread_anew,
)
from loadmanager.pipeline.replay.judging import (
    Advice,
    Evidence,
    Found,
    Level,
    Verdict,
    advised,
    evidence_of,
    judged,
    sentences,
)
from loadmanager.pipeline.replay.measures import (
    SCORE_NAMES,
    Ledger,
    Line,
    Moved,
    Scores,
    measure,
    percentile,
    scores_of,
)
from loadmanager.pipeline.replay.segment_replay import ERROR_COLUMNS, SegmentReplay

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
def test_trust_is_the_least(changes: dict[str, Any], away: float, level: Level, word: str) -> None:
    got, because = judged(replace(SOUND, **changes), away)
    assert got is level
    assert word in because


OTHER = "avg+avg"
TRIED = spread_anew(combinations([STILL, OTHER], []))
RECORDED_AT, STILL_AT, OTHER_AT, USUAL = 0, 1, 2, 3
STRETCHES = 12
ENOUGH = replace(SOUND, rounds=300, covered_s=5 * 3600.0, bases=20, reproduced=20, changed_count=40)


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
    told = {-1: 1.0, RECORDED_AT: 1.02, STILL_AT: 1.5, OTHER_AT: other, USUAL: 1.0}
    stretches = {
        number: {str(at): penalty for at in range(STRETCHES)} for number, penalty in told.items()
    }
    stretches[OTHER_AT] = {str(at): 0.5 if at < better else 1.5 for at in range(STRETCHES)}
    return Found(
        scores={number: scores(penalty) for number, penalty in told.items()},
        evidence=replace(ENOUGH, **changes),
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
    got = planted_advice.advice(
        planted_advice.late(events(simulated()), 900.0), planted_advice.PAIRS
    )
    assert (got.verdict, got.name) == (Verdict.NONE, "")
    assert "4.0 h of history and 20 decisions to move a bundle; has 14 min and 0" in got.text


@pytest.mark.thorough
def test_advice_on_a_planted_case_is_what_its_simulations_come_to() -> None:
    """One case of the table in docs/pipeline.md: its bench has all."""
    busy = planted_advice.cases(6)["busy: 8 brokers of two sizes, 96 bundles"]
    good, poor = planted_advice.PAIRS[0], planted_advice.PAIRS[2]
    (got,) = planted_advice.tried(busy, [3], pairs=(good, poor), recorded=[poor])
    assert (got.advice.verdict, got.outcome) == (Verdict.TRY, "better")
    assert got.real[good] < 0.8 * got.real[poor]
    assert planted_advice.table({"busy": [got]}).splitlines()[-1].startswith("| busy | 1 | 1 | 0 |")


PAIR = "threshold+least_long_term_message_rate"


def names(strategies: list[str], *settings: str) -> list[str]:
    return [one.name for one in combinations(strategies, settings)]


def test_what_was_recorded_is_always_replayed_first() -> None:
    assert names([PAIR]) == [AS_RECORDED, PAIR]
    assert combinations([], [])[0] == Combination(0)


def test_without_a_choice_every_pair_is_tried_but_those_that_follow_a_plan_nobody_makes() -> None:
    pairs = [f"{one}+{other}" for one, other in PAIRS if one == "avg" or other != "avg"]
    assert names([]) == [AS_RECORDED, *pairs]


def test_pulsars_names_are_ours() -> None:
    assert names(["ThresholdShedder+LeastLongTermMessageRate", PAIR]) == [AS_RECORDED, PAIR]


def test_an_asterisk_stands_for_many() -> None:
    assert len(names(["threshold+*"])) == 1 + 5
    assert names(["thr*+avg", "avg+avg", "thr*+avg"])[1:] == ["threshold+avg", "avg+avg"]


def test_all_values_of_all_settings_are_tried_with_each_other() -> None:
    found = names([PAIR], "margin=0.01,0.05", "planner.cool_down_s=0,600")
    assert found[1:] == [
        f"{PAIR} margin=0.01 planner.cool_down_s=0",
        f"{PAIR} margin=0.01 planner.cool_down_s=600",
        f"{PAIR} margin=0.05 planner.cool_down_s=0",
        f"{PAIR} margin=0.05 planner.cool_down_s=600",
    ]


def test_a_setting_goes_to_the_pairs_that_have_it() -> None:
    found = names([PAIR, "overload+round_robin"], "threshold=0.1,0.2")
    assert found[1:] == [f"{PAIR} threshold=0.1", f"{PAIR} threshold=0.2", "overload+round_robin"]
    assert len(names([PAIR, "overload+round_robin"], "placement.overloaded=0.7,0.8")) == 1 + 2 + 1


def test_the_mode_is_a_setting_and_a_list_is_one_value() -> None:
    assert names([PAIR], "mode=safe,parity")[1:] == [f"{PAIR} mode=safe", f"{PAIR} mode=parity"]
    (_, one) = combinations([PAIR], ['excluded_namespaces=["a/b","c/d"]'])
    assert one.settings == ('excluded_namespaces=["a/b","c/d"]',)


def test_combinations_act_even_if_the_recorded_leader_only_watched() -> None:
    recorded, one, kept = combinations([PAIR], ["observe=false,true"])
    assert recorded.wanted.settings == ()
    assert one.wanted.settings == ("planner.shedding=true", "observe=false")
    assert kept.wanted.settings == ("planner.shedding=true", "observe=true")
    assert combinations([PAIR], [])[1].wanted.settings == (
        "planner.observe=false",
        "planner.shedding=true",
    )


@pytest.mark.parametrize(
    ("strategies", "settings", "told"),
    [
        (["threshold"], [], "--strategy threshold; expected shedder+placement, such as"),
        (["treshold+avg"], [], "--strategy treshold+avg: shedder 'treshold'; expected one of"),
        (["magic*+avg"], [], "--strategy magic*+avg: no pair is like that; shedders are threshold"),
        ([PAIR], ["margin"], "--setting margin; expected key=value or key=value1,value2,..."),
        ([PAIR], ["margin=0.1,"], "--setting margin=0.1,; expected key=value or"),
        ([PAIR], ["margn=0.1"], "--setting margn=0.1: margn is unknown; did you mean margin?"),
        ([PAIR], ["margin=3"], "expected fraction from 0.0 to 1.0"),
        ([PAIR], ["margin=much"], "margin = 'much'; expected a number"),
        ([PAIR], ["margin=0.1", "margin=0.2"], "expected margin once, with all its values"),
        ([PAIR], [f"margin={','.join(str(one / 99_999) for one in range(10_001))}"], "fewer"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_was_expected(
    strategies: list[str], settings: list[str], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        combinations(strategies, settings)
    assert told in str(caught.value)
