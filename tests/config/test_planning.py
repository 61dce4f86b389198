from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
from pydantic import ValidationError

from loadmanager.config import ConfigError
from loadmanager.config.sections import (
    LeaderSettings,
    PlacementSettings,
    PlannerSettings,
    SheddingSettings,
    SplitSettings,
)
from loadmanager.config.strategies import (
    NO_LIMIT,
    default_planner,
    planner_of,
    shadows_of,
    split_limits_of,
    split_rules_of,
)
from loadmanager.core import planner_settings
from loadmanager.core.filters import Filters
from loadmanager.core.placement import JointPlacement, PlannedPlacement, RoundRobin
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import Mode
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.shedding import JointShedder, ThresholdShedder
from loadmanager.core.shedding.joint import MovePrice
from loadmanager.core.splitting.finder import SplitRules
from loadmanager.core.splitting.positions import SplitLimits

PARITY = PlannerSettings(mode="parity")


def planner(
    budgets: PlannerSettings | None = None, *, strategy: str = "threshold", **shedding: Any
) -> Planner:
    return planner_of(
        SheddingSettings(strategy=strategy, **shedding),
        PlacementSettings(
            max_topics_per_broker=7,
            prefer_later_versions=True,
            failure_domains=True,
            even_bundles=True,
        ),
        budgets or PlannerSettings(),
        LeaderSettings(settle_s=11, report_stale_s=99),
    )


def test_every_setting_of_planner_and_filters_can_be_configured() -> None:
    budgets = PlannerSettings(
        mode="parity",
        margin_fraction=0.5,
        max_moves_per_round=1,
        max_moves_per_hour=2,
        max_in_flight_per_broker=3,
        max_bytes_per_s_per_round=4.0,
        max_placements_per_round=5,
        max_drain_moves_per_round=6,
        max_stale_fraction=0.7,
        max_lost_fraction=0.8,
        lost_window_s=9.0,
    )
    shedding: dict[str, Any] = {"enabled": False, "observe": True, "grace_period_s": 10}
    got = planner(budgets, excluded_namespaces=("a/b",), **shedding)
    assert got.settings == planner_settings.PlannerSettings(
        mode=Mode.PARITY,
        observe=True,
        shedding=False,
        excluded_namespaces=frozenset({"a/b"}),  # type: ignore[arg-type]  # names are texts
        margin=0.5,
        moves_per_round=1,
        bytes_per_s_per_round=4.0,
        in_flight_per_broker=3,
        moves_per_hour=2,
        placements_per_round=5,
        drain_moves_per_round=6,
        cool_down_s=10.0,
        settle_s=11.0,
        max_stale_fraction=0.7,
        max_lost_fraction=0.8,
        lost_window_s=9.0,
    )
    default = planner_settings.PlannerSettings()
    same = {
        f.name for f in fields(default) if getattr(got.settings, f.name) == getattr(default, f.name)
    }
    assert same == {"steps_per_round"}  # What a round may cost is no choice of a file.
    assert got.filters == Filters(
        max_report_age_s=99.0,
        max_topics=7,
        prefer_later_versions=True,
        failure_domains=True,
        even_bundles=True,
        weights=ResourceWeights(like_java=True),
    )


def test_the_mode_is_safe_and_parity_makes_all_parts_like_java() -> None:
    safe, like_java = planner(), planner(PARITY)
    assert safe.settings.bytes_per_s_per_round == NO_LIMIT
    assert safe.settings.mode is default_planner().settings.mode is Mode.SAFE
    assert safe.shedder == ThresholdShedder()
    assert like_java.shedder == ThresholdShedder(
        like_java=True, weights=ResourceWeights(like_java=True)
    )
    assert like_java.weights == ResourceWeights(like_java=True)


def test_splits_have_the_mode_of_the_planner() -> None:
    split = SplitSettings(max_mib_per_s=2048)
    assert split_rules_of(split, PlannerSettings()) == SplitRules(max_mib_per_s=2048)
    assert split_rules_of(split, PARITY).max_bytes_per_s < 0
    assert split_limits_of(split, PlannerSettings()) == SplitLimits(max_mib_per_s=2048)
    assert split_limits_of(split, PARITY).like_java


def shadows(
    *names: str | Mapping[str, Any], placement: str = "", **shedding: Any
) -> Mapping[str, Planner]:
    given = {"strategy": placement} if placement else {}
    beside = PlacementSettings.model_validate({"max_topics_per_broker": 7, **given})
    settings = SheddingSettings.model_validate({"shadows": names, **shedding})
    return shadows_of(settings, beside, PlannerSettings(max_moves_per_hour=9), LeaderSettings())


def test_a_strategy_beside_is_as_if_it_were_configured_with_its_defaults() -> None:
    found = shadows("threshold", observe=True, enabled=False, grace_period_s=77.0)
    (name, beside), *others = found.items()
    assert (name, others, beside.shedder) == ("ThresholdShedder", [], ThresholdShedder())
    assert (beside.settings.observe, beside.settings.shedding) == (False, True)
    assert (beside.settings.cool_down_s, beside.settings.moves_per_hour) == (77.0, 9)
    assert beside.filters.max_topics == 7
    assert shadows() == {}


def test_a_strategy_beside_has_settings_of_its_own() -> None:
    quiet = {"strategy": "joint", "settings": {"move_price": "quiet"}}
    found = shadows(quiet, "threshold", settings={"high_hits": 3})
    assert found["JointShedder"].shedder == JointShedder(move_price=MovePrice.QUIET)
    assert found["ThresholdShedder"].shedder == ThresholdShedder()
    with pytest.raises(ConfigError, match=r"shadows, settings for JointShedder: price is unknown"):
        shadows({"strategy": "joint", "settings": {"price": "quiet"}})


def test_a_strategy_beside_has_a_placement_that_goes_with_it() -> None:
    joint = shadows("joint", placement="LeastLongTermMessageRate")["JointShedder"]
    assert isinstance(joint.placement, JointPlacement)
    assert joint.filters.max_topics == 7
    ours = shadows("avg", strategy="joint", placement="joint")["AvgShedder"]
    assert isinstance(ours.placement, PlannedPlacement)
    same = shadows("avg", placement="round_robin")["AvgShedder"]
    assert isinstance(same.placement, RoundRobin)


@pytest.mark.parametrize(
    "given",
    [
        ["least"],
        ["avg", "AvgShedder"],
        ["avg", {"strategy": "AvgShedder", "settings": {"high_hits": 3}}],
        ["avg", "joint", "threshold", "transfer"],
        [{"strategy": "least"}],
        [{"settings": {"threshold": 0.05}}],
        [{"strategy": "threshold", "threshold": 0.05}],
    ],
)
def test_strategies_beside_are_known_different_and_few(given: list[Any]) -> None:
    with pytest.raises(ValidationError, match="shadows"):
        SheddingSettings.model_validate({"shadows": given})


def test_an_excluded_namespace_has_to_be_one() -> None:
    with pytest.raises(ValidationError, match="excluded_namespaces"):
        SheddingSettings(excluded_namespaces=("public",))  # type: ignore[arg-type]  # a mistake
