import json
from pathlib import Path

import pytest

from loadmanager.config import Config, ConfigError, describe
from loadmanager.config.dynamic import NotDynamic, dynamic_names, override, with_overrides
from loadmanager.config.pulsar_import import UNUSED
from loadmanager.config.strategies import MANY, planner_of
from loadmanager.core.placement import JointPlacement
from loadmanager.core.planner import Planner

PULSAR_KEYS = json.loads((Path(__file__).parent / "pulsar_keys.json").read_text())


def config(**sections: object) -> Config:
    return Config.model_validate({"broker": {"id": "localhost:8080"}, **sections})


def planner(made: Config) -> Planner:
    return planner_of(made.shedding, made.placement, made.planner, made.leader)


def test_no_override_changes_nothing() -> None:
    own = config(zookeeper={"digest_user": "me", "digest_password": "secret"})
    assert override(own, {}).config == own


def test_our_names_and_those_of_pulsar_set_the_same_key() -> None:
    ours = with_overrides(config(), {"leader.round_interval_s": "120"})
    pulsars = with_overrides(config(), {"loadBalancerSheddingIntervalMinutes": "2"})
    assert ours == pulsars
    assert ours.leader.round_interval_s == 120


def test_a_setting_of_a_strategy_is_in_the_unit_of_its_name() -> None:
    own = config(shedding={"strategy": "ThresholdShedder"})
    for name, text in (
        ("shedding.settings.threshold", "0.25"),
        ("loadBalancerBrokerThresholdShedderPercentage", "25"),
    ):
        shedder = planner(with_overrides(own, {name: text})).shedder
        assert getattr(shedder, "threshold", None) == 0.25


def test_another_strategy_begins_with_its_own_settings() -> None:
    own = config(shedding={"strategy": "ThresholdShedder", "settings": {"threshold": 0.3}})
    low = "loadBalancerAvgShedderLowThreshold"
    changed = with_overrides(own, {low: "20", "loadBalancerLoadSheddingStrategy": "AvgShedder"})
    assert changed.shedding.strategy == "AvgShedder"
    assert changed.shedding.settings == {low: 20}
    # The same one keeps its own.
    assert with_overrides(own, {"shedding.strategy": "ThresholdShedder"}) == own


def test_times_that_only_go_together_are_taken_together() -> None:
    both = {"leader.report_stale_s": "20", "report.max_interval_s": "10"}
    assert override(config(), both).faults == {}
    changed = override(config(), both).config
    assert (changed.leader.report_stale_s, changed.report.max_interval_s) == (20, 10)


def test_a_wrong_override_is_left_out_and_stops_no_other() -> None:
    result = override(
        config(),
        {
            "leader.round_interval_s": "often",
            "leader.settle_s": "3",
            "report.min_interval_s": "100",
            "zookeeper.hosts": "elsewhere:2181",
        },
    )
    assert result.config == with_overrides(config(), {"leader.settle_s": "3"})
    assert result.faults == {
        "leader.round_interval_s": (
            "leader.round_interval_s=often; expected a number from 0.1 to 3600"
        ),
        "report.min_interval_s": (
            "report.min_interval_s=100; expected at most [report] max_interval_s (60)"
        ),
        "zookeeper.hosts": "zookeeper.hosts: not dynamic, it is read when a sidecar starts",
    }


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *((name, "") for name in ("nothing", "leader.nothing", "leader.settle_s.more", "")),
        *((name, "") for name in ("security.admins", "security.anonymous", "tls.certificate_file")),
        ("zookeeper.hosts", "it is read when a sidecar starts"),
        ("clusterName", "it is read when a sidecar starts"),
        ("webServicePort", "it is read when a sidecar starts"),
        ("loadManagerClassName", "it means nothing here: loadmanager is the load manager"),
        ("loadBalancerNonsense", "there is no such key"),
    ],
)
def test_what_is_read_at_the_start_only_cannot_be_set(name: str, why: str) -> None:
    assert name not in dynamic_names()
    with pytest.raises(NotDynamic, match=f"{name}: not dynamic, {why}"):
        with_overrides(config(), {name: "1"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shedding.strategy", "Guessing"),
        ("shedding.settings.threshold", "0.1"),
        ("loadBalancerSheddingEnabled", "maybe"),
        ("shedding.settings.move_price", "cheap"),
        ("log.level", "loud"),
    ],
)
def test_a_value_that_means_nothing_is_refused_with_its_name(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected|did you mean") as refused:
        with_overrides(config(), {name: text})
    assert not isinstance(refused.value, NotDynamic)


def test_pulsars_dynamic_keys_are_dynamic_here_where_they_mean_something() -> None:
    dynamic = {key["key"] for key in PULSAR_KEYS if key["dynamic"]}
    assert dynamic - set(dynamic_names()) - set(UNUSED) == set()


def test_a_misspelt_name_of_pulsar_sets_what_is_meant() -> None:
    own = config(shedding={"strategy": "ThresholdShedder"})
    wrong = with_overrides(own, {"loadBalancerBandwithInResourceWeight": "0.5"})
    assert wrong == with_overrides(own, {"loadBalancerBandwidthInResourceWeight": "0.5"})


def test_every_dynamic_key_of_ours_can_be_set_to_what_it_is() -> None:
    for known in describe():
        if known.dynamic and known.default is not None:
            text = str(known.default) if known.kind == "text" else json.dumps(known.default)
            assert with_overrides(config(), {f"{known.section}.{known.key}": text}) == config()


def test_a_setting_of_a_strategy_that_has_none_is_told_as_such() -> None:
    with pytest.raises(ConfigError, match="high_hits is unknown; it has no settings"):
        with_overrides(config(), {"placement.settings": '{"high_hits": 7}'})


def test_the_joint_strategy_keeps_its_placement_and_its_free_moves_under_other_settings() -> None:
    own = config(shedding={"strategy": "joint"})
    result = override(own, {"leader.settle_s": "3"})
    assert result.faults == {}
    assert isinstance(planner(result.config).placement, JointPlacement)
    assert planner(result.config).settings.moves_per_round == MANY
    bounded = with_overrides(own, {"planner.max_moves_per_round": "16"})
    assert planner(bounded).settings.moves_per_round == 16


def test_strategies_that_go_together_are_taken_in_beside_one_that_is_wrong() -> None:
    own = config(shedding={"strategy": "joint"})
    both = {"shedding.strategy": "threshold", "placement.strategy": "round_robin"}
    result = override(own, {**both, "leader.settle_s": "long"})
    assert set(result.faults) == {"leader.settle_s"}
    assert result.config.shedding.strategy == "threshold"
    assert result.config.placement.strategy == "round_robin"
    alone = override(own, {"placement.strategy": "round_robin"})
    assert set(alone.faults) == {"placement.strategy"}
    assert alone.config == own
