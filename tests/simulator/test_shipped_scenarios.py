import math
import os
from contextlib import closing
from fnmatch import fnmatchcase

import pytest
from all_placements import with_all_placements
from simulated_jobs import score_job

from loadmanager.config.sections import SheddingSettings
from loadmanager.config.strategies import PLACEMENT_NAMES, SHEDDER_NAMES, own_placement
from loadmanager.core.shedding import SHEDDERS
from loadmanager.simulator.scenario import Expectation, Scenario
from loadmanager.simulator.scenario_files import load_scenario, shipped
from loadmanager.simulator.simulation_jobs import (
    Compared,
    Judged,
    compared,
    jobs_of,
    judged,
    results_of,
)
from loadmanager.simulator.strategies import Strategy, parse_strategies

LONG = {"diurnal-trend", "recorded-services", "thousand"}
"""One run of these takes so long that only what is expected of someone by name is run."""

SLOW = {
    *("all-on-one", "cold-start", "crash-at-peak", "day-pattern", "flapping", "flash-crowd"),
    *("hidden-speeds", "noisy-neighbour", "over-placement", "over-unloading", "rolling-restart"),
    *("slow-balancing", "four-resources", "noise", "trace-example", "wandering-hot-spots"),
    *("heterogeneous-environment", "mixed-message-sizes", "saturated"),
}
"""All strategies in one of these take more than 10 s of CPU; `fresh-start` does, too, and stays."""
CORES = min(2, len(os.sched_getaffinity(0)))
SCENARIOS = {name: load_scenario(path) for name, path in shipped().items()}


def test_all_scenarios_that_are_told_of_are_shipped() -> None:
    of_pip_364 = (
        "heterogeneous-environment load-jitter over-placement over-unloading slow-balancing"
    )
    operations = (
        "rolling-restart cold-start hot-topic noisy-neighbour day-pattern flash-crowd "
        "crash-at-peak mixed-message-sizes idle-broker trace-example"
    )
    of_many_resources_and_times = (
        "diurnal-trend flapping four-resources hidden-speeds recorded-services saturated thousand"
    )
    of_the_literature = "opposite-skews equal-items heterogeneous-cores all-on-one"
    of_changing_traffic = "fresh-start noise tight-fits wandering-hot-spots"
    groups = (
        *(of_pip_364, operations, of_many_resources_and_times, of_the_literature),
        of_changing_traffic,
    )
    assert set(SCENARIOS) == {name for group in groups for name in group.split()}


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_says_what_it_is_and_expects_something_of_the_default_pair(name: str) -> None:
    scenario = SCENARIOS[name]
    assert scenario.description.endswith(".")
    comment = shipped()[name].read_text(encoding="utf-8").partition("\ntitle =")[0].splitlines()
    assert len(comment) >= 3
    assert all(line.startswith("#") or not line for line in comment)
    shedder = SheddingSettings().strategy
    default = Strategy(shedder=shedder, placement=own_placement(SHEDDERS[shedder]))
    assert any(meant(one, default) for one in scenario.expect)
    for one in scenario.expect:
        assert any(meant(one, pair) for pair in parse_strategies("*"))
        assert one.least is not None or one.most is not None


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.thorough if name in SLOW else pytest.mark.simulated)
        for name in sorted(set(SCENARIOS) - LONG)
    ],
)
def test_all_strategies_run_in_it_and_do_as_it_expects(name: str) -> None:
    scenario = SCENARIOS[name]
    verdicts: list[Judged] = []
    ran = set()
    for one in with_all_placements(jobs_of([(name, scenario)], wanted(scenario), 1), CORES):
        ran.add((one.strategy.mode, one.strategy.name))
        assert_sane(one)
        verdicts += judged(scenario.expect, one)
    assert {("safe", pair.name) for pair in parse_strategies("*")} <= ran
    assert [str(verdict) for verdict in verdicts if not verdict.holds] == []


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(LONG))
def test_the_strategies_that_a_long_one_names_do_as_it_expects(name: str) -> None:
    scenario = SCENARIOS[name]
    pairs = sorted({pattern for one in scenario.expect for pattern in one.strategies})
    jobs = jobs_of([(name, scenario)], [Strategy.parse(pair) for pair in pairs], 1)
    with closing(results_of(jobs, score_job, processes=CORES)) as results:
        for one in compared(results):
            assert_sane(one)
            assert [str(each) for each in judged(scenario.expect, one) if not each.holds] == []


def wanted(scenario: Scenario) -> list[Strategy]:
    """Return all shedders in safe mode, and in parity mode those of which something is expected."""
    first = PLACEMENT_NAMES[0]
    safe = [Strategy(shedder=name, placement=first) for name in SHEDDER_NAMES]
    parity = {
        pair.shedder: Strategy(shedder=pair.shedder, placement=first, mode="parity")
        for pair in parse_strategies("*")
        if any(one.mode == "parity" and meant(one, pair) for one in scenario.expect)
    }
    return [*safe, *parity.values()]


def meant(one: Expectation, pair: Strategy) -> bool:
    return any(fnmatchcase(pair.name, pattern) for pattern in one.strategies)


def assert_sane(found: Compared) -> None:
    (scores,) = found.runs
    assert scores.max_over_mean >= 1.0
    assert scores.largest_p95 > 0.0
    # The bound is proven: nothing is better, but for the 32 bits of the timeline.
    assert scores.gap > -1e-3
    assert scores.returned <= scores.moves
    assert math.isfinite(scores.interrupted_client_s)
