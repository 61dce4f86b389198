import json
import re
from dataclasses import replace
from typing import Any

import pytest

from loadmanager.config import ConfigError, sections
from loadmanager.config.strategies import (
    NAMES_IN_FILES,
    Wanted,
    default_planner,
    fields_of,
    planner_for,
    planner_of,
)
from loadmanager.core.filters import Filters
from loadmanager.core.placement import PLACEMENTS, LeastLongTermMessageRate, RoundRobin
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import Mode, PlannerSettings
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.shedding import (
    SHEDDERS,
    AvgShedder,
    OverloadShedder,
    ThresholdShedder,
    TransferShedder,
    UniformLoadShedder,
)
from loadmanager.core.snapshot.codec import in_force
from loadmanager.core.snapshot.document import Choice, InForce

LEAST = "LeastLongTermMessageRate"


def planner(*settings: str, told: InForce | None = None, **wanted: Any) -> Planner:
    return planner_for("c.json", told or InForce(), Wanted(settings=settings, **wanted))


def test_without_a_word_everything_is_as_with_an_empty_configuration() -> None:
    assert planner() == default_planner()


@pytest.mark.parametrize(
    "shedder",
    [
        ThresholdShedder(threshold=0.2, weights=ResourceWeights(cpu=2.0)),
        OverloadShedder(overloaded=0.7),
        UniformLoadShedder(max_bundles=3),
        AvgShedder(low_hits=1),
        TransferShedder(excluded_namespaces=frozenset({"a/b", "c/d"})),  # type: ignore[arg-type]  # names are texts
    ],
)
def test_what_was_in_force_makes_the_same_planner_again(shedder: ThresholdShedder) -> None:
    before = Planner(
        shedder=shedder,
        placement=RoundRobin(),
        settings=PlannerSettings(mode=Mode.PARITY, margin=0.1),
        filters=Filters(max_topics=7),
        weights=getattr(shedder, "weights", ResourceWeights()),
    )
    assert planner(told=in_force(before)) == before


@pytest.mark.parametrize(
    ("settings", "wanted", "shedder"),
    [
        # Another strategy begins with its own defaults; the same one keeps its settings.
        ((), "AvgShedder", AvgShedder()),
        ((), "threshold", ThresholdShedder(threshold=0.3)),
        (("threshold=0.2",), None, ThresholdShedder(threshold=0.2)),
    ],
)
def test_what_is_set_wins_over_what_was_in_force(
    settings: tuple[str, ...], wanted: str | None, shedder: ThresholdShedder
) -> None:
    told = InForce(shedder=Choice("ThresholdShedder", {"threshold": 0.3}))
    assert planner(*settings, told=told, shedder=wanted).shedder == shedder


@pytest.mark.parametrize(
    ("setting", "overloaded"),
    [
        ("loadBalancerBrokerOverloadedThresholdPercentage=70", (0.7, 0.7)),
        ("placement.overloaded=0.6", (OverloadShedder().overloaded, 0.6)),
    ],
)
def test_a_setting_goes_to_every_part_that_has_it_or_to_the_one_that_is_named(
    setting: str, overloaded: tuple[float, float]
) -> None:
    got = planner(setting, shedder="overload", placement=LEAST)
    assert got.shedder == OverloadShedder(overloaded=overloaded[0])
    assert got.placement == LeastLongTermMessageRate(overloaded=overloaded[1])


def test_the_weights_of_the_shedder_say_what_better_means() -> None:
    assert planner("weights_cpu=3").weights == ResourceWeights(cpu=3.0)


def test_planner_and_filters_are_set_by_the_same_words() -> None:
    got = planner("margin=0", "max_topics=5", 'excluded_namespaces=["a/b"]', mode="parity")
    usual = default_planner()
    assert got.settings == replace(
        usual.settings,
        margin=0.0,
        mode=Mode.PARITY,
        excluded_namespaces=frozenset({"a/b"}),  # type: ignore[arg-type]  # names are texts
    )
    assert got.filters == replace(usual.filters, max_topics=5, weights=got.filters.weights)


@pytest.mark.parametrize("key", [*sections.PlannerSettings.model_fields])
@pytest.mark.parametrize("part", ["", "planner."])
def test_keys_of_the_planner_are_taken_as_files_have_them(key: str, part: str) -> None:
    special = {"mode": "parity", "margin_fraction": 0.25}
    value: Any = {**special, "lost_window_s": 90.0}.get(
        key, 0.5 if key.endswith("_fraction") else 3
    )
    in_a_file = planner_of(
        sections.SheddingSettings(),
        sections.PlacementSettings(),
        sections.PlannerSettings.model_validate({key: value}),
        sections.LeaderSettings(),
    )
    text = value if key == "mode" else json.dumps(value)
    got = planner(f"{part}{key}={text}")
    assert got == in_a_file
    assert got != default_planner()


def test_keys_of_files_are_keys_of_nothing_else() -> None:
    kinds = {PlannerSettings, Filters, *SHEDDERS.values(), *PLACEMENTS.values()}
    core = {key for kind in kinds for key in fields_of(kind)}
    assert not core & NAMES_IN_FILES.keys()
    assert {*NAMES_IN_FILES.values()} <= {*fields_of(PlannerSettings)}


@pytest.mark.parametrize(
    ("settings", "wanted", "message"),
    [
        (["threshold"], {}, "--set threshold; expected key=value"),
        (["treshold=1"], {"shedder": "threshold"}, "unknown; did you mean threshold"),
        (["foo=1"], {}, "--set foo=1: foo is unknown; expected one of bytes_per_s_per_round, "),
        (["shed.margin=1"], {}, "--set shed.margin=1: shed.margin is unknown; did you mean margin"),
        (["filters.margin=1"], {}, "filters.margin is unknown; expected one of even_bundles, "),
        (["margin=x"], {}, "--set for PlannerSettings: margin = 'x'; expected a number"),
        (["margin=NaN"], {}, "PlannerSettings.margin = nan; expected fraction from 0.0 to 1.0"),
        (["max_topics=1.5"], {}, "max_topics = 1.5; expected a whole number"),
        (["observe=1"], {}, "observe = 1; expected true or false"),
        (["planner.mode=fast"], {}, "mode = 'fast'; expected one of safe, parity"),
        (["excluded_namespaces=1"], {}, "excluded_namespaces = 1; expected a list of texts"),
        (
            ["threshold=1.4"],
            {"shedder": "threshold"},
            "ThresholdShedder.threshold = 1.4; expected fraction from 0.0 to",
        ),
        ([], {"shedder": "foo"}, "--shedder foo; expected one of AvgShedder, OverloadShedder"),
        ([], {"placement": "foo"}, "--placement foo; expected one of AvgShedder, LeastLongTerm"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(
    settings: list[str], wanted: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        planner(*settings, **wanted)


def test_a_setting_of_the_snapshot_is_refused_by_its_place() -> None:
    told = InForce(shedder=Choice("threshold", {"treshold": 1}))
    message = "c.json: settings.shedder for ThresholdShedder: treshold is unknown; did you mean"
    with pytest.raises(ConfigError, match=message):
        planner(told=told)


def test_all_unknown_keys_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        planner("treshold=1", "margn=1", shedder="threshold")
    assert len(caught.value.faults) == 2
