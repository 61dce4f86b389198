import json
import re
from pathlib import Path

import pytest
from configuration_reference import configuration_reference
from strategy_guide import strategy_guide

from loadmanager.config import describe
from loadmanager.core.filters import Filters
from loadmanager.core.placement import PLACEMENTS
from loadmanager.core.plan import Cause, Reason
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.settings import settings_of
from loadmanager.core.shedding import SHEDDERS


def test_every_key_has_a_row_that_says_what_it_does() -> None:
    rows = [line for line in configuration_reference().splitlines() if line.startswith("| `")]
    for known in describe():
        assert any(row.startswith(f"| `{known.key}` | {known.description}") for row in rows)


def test_every_key_of_pulsar_is_told_of_here_or_in_the_strategy_guide() -> None:
    keys = json.loads((Path(__file__).parent / "pulsar_keys.json").read_text())
    told = configuration_reference() + strategy_guide()
    assert [known["key"] for known in keys if f"`{known['key']}`" not in told] == []


@pytest.mark.parametrize("name", sorted({*SHEDDERS, *PLACEMENTS}))
def test_every_name_of_every_strategy_is_in_it(name: str) -> None:
    assert f"`{name}`" in strategy_guide()


@pytest.mark.parametrize(
    "kind", dict.fromkeys([*SHEDDERS.values(), *PLACEMENTS.values(), PlannerSettings, Filters])
)
def test_every_setting_is_in_it_with_its_default_and_pulsars_key(kind: type) -> None:
    rows = strategy_guide().splitlines()
    for setting in settings_of(kind):
        (row, *_) = [row for row in rows if row.startswith(f"| `{setting.name}` |")]
        assert row.count("|") == 7
        assert any(
            f"`{setting.doc.pulsar_key}`" in one
            for one in rows
            if setting.doc.pulsar_key and one.startswith(f"| `{setting.name}` |")
        ) == bool(setting.doc.pulsar_key)


def test_weights_are_told_under_the_keys_that_the_configuration_takes() -> None:
    guide = strategy_guide()
    for setting in settings_of(ResourceWeights):
        assert f"| `weights_{setting.name}` |" in guide


def test_every_reason_and_cause_is_in_it() -> None:
    cells = set(re.findall(r"^\| `([a-z_]+)` \|", strategy_guide(), re.MULTILINE))
    assert {*Reason, *Cause} <= cells


def test_no_row_is_broken_by_a_bar_in_its_text() -> None:
    tables = [line for line in strategy_guide().splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables} == {3, 4, 7}


def test_pulsars_units_are_told_where_they_differ() -> None:
    guide = strategy_guide()
    assert "`loadBalancerBrokerThresholdShedderPercentage`, 100 times as much |" in guide
    assert "`loadBalancerSheddingGracePeriodMinutes`, where 1 is 60 here |" in guide
    assert "`loadBalancerHistoryResourcePercentage` |" in guide
