from dataclasses import fields

import pytest

from loadmanager.config.strategies import filled
from loadmanager.core.filters import Filters
from loadmanager.core.placement import PLACEMENTS, LeastLongTermMessageRate
from loadmanager.core.plan import Cause, Reason
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.report import ReportRules
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.settings import SettingOutOfRange, groups_of, settings_of
from loadmanager.core.shedding import SHEDDERS, ThresholdShedder, UniformLoadShedder
from loadmanager.core.splitting.finder import SplitRules
from loadmanager.core.splitting.positions import SplitLimits

RULES = {Filters, PlannerSettings, ReportRules, ResourceWeights, SplitLimits, SplitRules}
KINDS = sorted({*SHEDDERS.values(), *PLACEMENTS.values(), *RULES}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_says_what_it_does_and_keeps_its_range(kind: type) -> None:
    described = settings_of(kind)
    # Whether a strategy is like Java is not its own setting: the planner's mode says it.
    assert {one.name for one in described} | groups_of(kind).keys() == {
        field.name for field in fields(kind)
    } - {"like_java"}
    for setting in described:
        assert setting.doc.effect.endswith(".")
        assert setting.doc.unit or setting.kind not in {int, float}
        if setting.kind in {int, float}:
            assert setting.least is not None
            assert setting.most is not None
            with pytest.raises(SettingOutOfRange, match=setting.name):
                kind(**{setting.name: setting.least - 1})
            with pytest.raises(SettingOutOfRange, match=setting.name):
                kind(**{setting.name: float("nan")})
            kind(**{setting.name: setting.kind(setting.most)})


def test_the_error_names_strategy_field_value_and_range() -> None:
    with pytest.raises(SettingOutOfRange) as refused:
        ThresholdShedder(threshold=1.4)
    assert (
        str(refused.value) == "ThresholdShedder.threshold = 1.4; expected fraction from 0.0 to 1.0"
    )
    assert refused.value.name == "threshold"


def test_pulsars_percentages_become_fractions_exactly() -> None:
    for percent in range(101):
        keys = {"loadBalancerBrokerOverloadedThresholdPercentage": percent}
        assert filled(LeastLongTermMessageRate, keys, "[x]").overloaded == percent / 100.0


def test_megabytes_become_bytes() -> None:
    keys = {"loadBalancerBundleUnloadMinThroughputThreshold": 10.0}
    assert filled(ThresholdShedder, keys, "[x]").min_bytes_per_s == 10 * 1024 * 1024


def test_pulsars_names_find_the_strategies() -> None:
    prefix = "org.apache.pulsar.broker.loadbalance.impl."
    for name in ("OverloadShedder", "ThresholdShedder", "UniformLoadShedder", "AvgShedder"):
        assert SHEDDERS[name] is SHEDDERS[prefix + name]
    assert SHEDDERS["uniform"] is UniformLoadShedder
    extensible = "org.apache.pulsar.broker.loadbalance.extensions."
    assert SHEDDERS[f"{extensible}scheduler.TransferShedder"] is SHEDDERS["transfer"]
    assert (
        PLACEMENTS[f"{extensible}strategy.LeastResourceUsageWithWeight"]
        is not (PLACEMENTS[f"{prefix}LeastResourceUsageWithWeight"])
    )


@pytest.mark.parametrize("one", [*Reason, *Cause])
def test_every_code_has_a_sentence_and_a_reason_what_it_would_take(one: Cause | Reason) -> None:
    assert one.meaning.endswith(".")
    assert one.takes.endswith(".") is isinstance(one, Reason)
    assert type(one)(one.value) is one


def test_a_reason_and_a_cause_of_the_same_word_are_told_apart() -> None:
    assert Reason.DRAINING.meaning != Cause.DRAINING.meaning
