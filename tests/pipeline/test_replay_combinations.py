"""The strategies and settings that are replayed."""

import pytest

from loadmanager.config import ConfigError
from loadmanager.config.strategies import PAIRS
from loadmanager.pipeline.replay.combinations import AS_RECORDED, Combination, combinations

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
