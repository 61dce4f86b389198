import pytest

from loadmanager.config import ConfigError
from loadmanager.config.sections import SheddingSettings
from loadmanager.core.filters import Filters
from loadmanager.core.placement import LeastLongTermMessageRate, PlannedPlacement, RoundRobin
from loadmanager.core.shedding import AvgShedder, ThresholdShedder, TransferShedder
from loadmanager.simulator.scenario import BrokerClass, Scenario
from loadmanager.simulator.strategies import PAIR_NAMES, Strategy, parse_strategies, planner_for

PACKAGE = "org.apache.pulsar.broker.loadbalance"


def scenario(**sections: object) -> Scenario:
    brokers = (BrokerClass(name="b", count=2),)
    return Scenario.model_validate({"title": "two brokers", "brokers": brokers, **sections})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ThresholdShedder+LeastLongTermMessageRate", "threshold+least_long_term_message_rate"),
        # With their package, the two of one name are told apart.
        (
            f"uniform+{PACKAGE}.impl.LeastResourceUsageWithWeight",
            "uniform+least_resource_usage_with_weight",
        ),
        (
            f"transfer+{PACKAGE}.extensions.strategy.LeastResourceUsageWithWeight",
            "transfer+least_average_usage",
        ),
    ],
)
def test_a_pair_is_named_by_our_short_names(text: str, name: str) -> None:
    assert Strategy.parse(text).name == name


def test_a_placement_without_its_plan_is_told() -> None:
    remarks = {pair.name: pair.remark for pair in parse_strategies("*")}
    assert "picks at random" in remarks["threshold+avg"]
    assert not remarks["avg+avg"]
    assert not remarks["avg+round_robin"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("threshold", "strategy 'threshold'; expected shedder+placement, such as threshold+"),
        ("", "strategy ''; expected shedder+placement"),
        ("thresh+avg", "shedder 'thresh'; expected one of AvgShedder, "),
        ("avg+robin", "placement 'robin'; expected one of AvgShedder, LeastLongTerm"),
        ("zz*", "no pair is like that; shedders are threshold, overload, uniform, avg, transfer"),
        ("*+robin", "placement 'robin'; expected one of"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as problem:
        parse_strategies(text)
    assert told in str(problem.value)


def test_all_faults_of_a_list_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as problem:
        parse_strategies("x+avg,avg+avg,avg+y")
    assert len(problem.value.faults) == 2


def test_a_star_stands_for_anything_beside_names_of_ours_and_pulsars() -> None:
    assert tuple(pair.name for pair in parse_strategies("*")) == PAIR_NAMES
    assert {pair.shedder for pair in parse_strategies("TransferShedder+*")} == {"transfer"}
    assert [pair.name for pair in parse_strategies("avg+*_usage*,avg+avg, avg+avg")] == [
        "avg+least_resource_usage_with_weight",
        "avg+least_average_usage",
        "avg+avg",
    ]


def test_a_setting_goes_to_the_pairs_that_have_it() -> None:
    given = ("target_std=0.1", "placement.overloaded=0.7", "margin=0.05")
    pairs = parse_strategies(
        "transfer+round_robin,avg+least_long_term_message_rate", ("safe",), given
    )
    assert [pair.settings for pair in pairs] == [
        ("target_std=0.1", "margin=0.05"),
        ("placement.overloaded=0.7", "margin=0.05"),
    ]
    transfer, average = (planner_for(scenario(), pair) for pair in pairs)
    assert transfer.shedder == TransferShedder(target_std=0.1)
    assert average.placement == LeastLongTermMessageRate(overloaded=0.7)
    assert transfer.settings.margin == average.settings.margin == 0.05


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("tresholt=1", "--set tresholt=1: tresholt is unknown to the strategies that are compared"),
        ("history=0.5", "expected one of"),
        ("shedder.overloaded=1", "shedder.overloaded is unknown"),
        ("nowhere.margin=1", "nowhere.margin is unknown"),
        ("margin", "--set margin; expected key=value"),
        ("mode=parity", "--set mode=parity; expected --mode"),
        ("planner.mode=safe", "--set planner.mode=safe; expected --mode"),
    ],
)
def test_a_setting_that_no_pair_has_is_refused(setting: str, told: str) -> None:
    with pytest.raises(ConfigError) as problem:
        parse_strategies("avg+least_long_term_message_rate", ("safe",), (setting,))
    assert told in str(problem.value)


def test_settings_of_the_scenario_count_for_their_own_strategy_alone() -> None:
    shedding = SheddingSettings(strategy="ThresholdShedder", settings={"threshold": 0.3})
    one = scenario(shedding=shedding)
    kept = planner_for(one, Strategy.parse("threshold+avg"))
    other = planner_for(one, Strategy.parse("avg+round_robin"))
    assert kept.shedder == ThresholdShedder(threshold=0.3)
    assert kept.placement == PlannedPlacement()
    assert other.shedder == AvgShedder()
    assert other.placement == RoundRobin()


def test_the_other_sections_of_the_scenario_hold_for_all() -> None:
    one = scenario(
        planner={"max_moves_per_round": 3},
        leader={"settle_s": 5.0, "report_stale_s": 90.0},
        shedding={"grace_period_s": 60.0},
    )
    for pair in parse_strategies("*"):
        planner = planner_for(one, pair)
        assert planner.settings.moves_per_round == 3
        assert planner.settings.cool_down_s == 60.0
        assert planner.settings.settle_s == 5.0
        assert planner.filters.max_report_age_s == 90.0
        assert isinstance(planner.filters, Filters)
