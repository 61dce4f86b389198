"""Which strategies may be chosen together, and how many moves a strategy is held to."""

from pathlib import Path
from typing import Any

import pytest

from loadmanager.config import ConfigError, load_config
from loadmanager.config.sections import (
    LeaderSettings,
    PlacementSettings,
    PlannerSettings,
    SheddingSettings,
)
from loadmanager.config.strategies import (
    MANY,
    Wanted,
    default_planner,
    own_placement,
    placements_of,
    planner_for,
    planner_of,
)
from loadmanager.core.placement import JointPlacement, PlannedPlacement
from loadmanager.core.planner import Planner
from loadmanager.core.shedding import AvgShedder, JointShedder
from loadmanager.core.snapshot.codec import in_force
from loadmanager.simulator.strategies import Strategy, parse_strategies

ID = {"LOADMANAGER_BROKER__ID": "b:8080"}


def made(shedder: str, placement: str | None = None, **budgets: Any) -> Planner:
    chosen = PlacementSettings() if placement is None else PlacementSettings(strategy=placement)
    shedding = SheddingSettings(strategy=shedder)
    return planner_of(shedding, chosen, PlannerSettings(**budgets), LeaderSettings())


def test_a_placement_that_is_not_named_is_the_shedders_own() -> None:
    assert own_placement(JointShedder) == "joint"
    assert isinstance(made("threshold").placement, PlannedPlacement)
    for planner in (made("joint"), made("joint", "joint")):
        assert isinstance(planner.shedder, JointShedder)
        assert isinstance(planner.placement, JointPlacement)


def test_a_file_with_a_different_placement_is_refused_at_its_line(tmp_path: Path) -> None:
    file = tmp_path / "loadmanager.toml"
    begin = '[broker]\nid = "b:8080"\n[shedding]\nstrategy = "joint"\n'
    file.write_text(f'{begin}[placement]\nstrategy = "avg"\n')
    with pytest.raises(ConfigError, match=r"placement.*expected none, or joint"):
        load_config(file, {})
    file.write_text(f'{begin}[placement]\nstrategy = "joint"\n'.replace('"joint"', '"avg"', 1))
    with pytest.raises(ConfigError, match=r"placement.*expected another"):
        load_config(file, {})
    file.write_text(begin)
    assert load_config(file, {}).shedding.strategy == "joint"


def test_settings_of_another_strategy_are_refused_with_the_strategy_to_name() -> None:
    with pytest.raises(ConfigError, match=r"high_hits is unknown; expected with strategy = 'AvgSh"):
        load_config(None, ID, ["shedding.strategy=joint", "shedding.settings.high_hits=3"])
    with pytest.raises(ConfigError, match=r"difference .* = 'LeastAverageUsage' or 'LeastR"):
        load_config(None, ID, ["placement.settings.difference=0.7"])


def test_only_a_number_that_was_given_bounds_its_moves() -> None:
    free = made("joint").settings
    assert (free.moves_per_round, free.moves_per_hour) == (MANY, MANY)
    given = made("joint", max_moves_per_round=5, max_moves_per_hour=50).settings
    assert (given.moves_per_round, given.moves_per_hour) == (5, 50)
    usual = made("avg").settings
    assert (usual.moves_per_round, usual.moves_per_hour) == (16, 480)


def test_what_is_tried_on_a_snapshot_gets_the_placement_that_goes_with_it() -> None:
    told = in_force(default_planner())
    tried = planner_for("s", told, Wanted(shedder="joint"))
    assert isinstance(tried.placement, JointPlacement)
    back = planner_for("s", in_force(made("joint")), Wanted(shedder="avg"))
    assert isinstance(back.shedder, AvgShedder)
    assert isinstance(back.placement, PlannedPlacement)
    with pytest.raises(ConfigError, match="JointShedder with RoundRobin"):
        planner_for("s", told, Wanted(shedder="joint", placement="round_robin"))


def test_commands_know_it_as_a_pair_with_itself() -> None:
    assert Strategy.parse("joint+joint").name == "joint+joint"
    assert placements_of("joint") == ("joint",)
    assert "joint" not in placements_of("avg")
    assert [one.name for one in parse_strategies("joint+*")] == ["joint+joint"]
    for text in ("joint+avg", "avg+joint"):
        with pytest.raises(ConfigError, match="expected"):
            Strategy.parse(text)
