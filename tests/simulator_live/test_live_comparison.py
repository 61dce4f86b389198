from collections.abc import Mapping

import pytest
from live_comparison import Story, calibrated, common_prefix, compared, edit_distance, without_noise
from live_scenario import LiveLook, LiveRun, Step, bundle_of

from loadmanager.core.ids import BundleId, Namespace
from loadmanager.simulator.scenario import BrokerClass, Load, Scenario


@pytest.mark.parametrize(
    ("one", "other", "edits", "prefix"),
    [
        ("abc", "abc", 0, 3), ("abc", "ac", 1, 1), ("abc", "acb", 2, 1), ("", "ab", 2, 0),
        ("abc", "xyz", 3, 0), ("ab", "abc", 1, 2),
    ],
)  # fmt: skip
def test_common_prefix_and_edits_of_two_sequences(
    one: str, other: str, edits: int, prefix: int
) -> None:
    assert edit_distance(one, other) == edit_distance(other, one) == edits
    assert common_prefix(one, other) == prefix


def story(moves: str, rounds: tuple[int, ...], load: float) -> Story:
    steps = zip(moves, rounds, strict=True)
    loads = {"broker-1": load, "broker-2": 1.0 - load}
    return Story(
        steps=tuple(
            Step(round=number, bundle=BundleId(one), source="broker-1", target="broker-2")
            for one, number in steps
        ),
        loads=(loads,),
        final=loads,
        traffic=loads,
    )


def test_stories_that_differ_in_a_move_and_five_points_are_told_to() -> None:
    found = compared(story("abc", (1, 2, 3), 0.55), story("abd", (1, 4, 4), 0.50))
    assert (found.moves_live, found.moves_simulated) == (3, 3)
    assert (found.same_prefix, found.edits, found.rounds_apart) == (2, 1, 2)
    assert found.final_points_most == pytest.approx(5.0)
    assert found.load_points_mean == pytest.approx(5.0)
    assert found.max_over_mean_live == pytest.approx(1.1)


def small_scenario() -> Scenario:
    rates = {"shop/a": 30.0, "shop/b": 20.0, "shop/c": 10.0, "shop/d": 10.0}
    return Scenario(
        title="two brokers",
        duration_s=60.0,
        step_s=0.5,
        brokers=(BrokerClass(name="broker", count=2, cores=0.5),),
        load=tuple(
            Load(
                namespace=Namespace(name),
                bundles=1,
                topics=1,
                msgs_in_per_s=rate,
                placed_on=("broker-2" if name == "shop/d" else "broker-1",),
            )
            for name, rate in rates.items()
        ),
    )


def looks_of(scenario: Scenario, cpu_s_per_msg: float, idle: float) -> tuple[LiveLook, ...]:
    served: dict[str, dict[BundleId, float]] = {"broker-1": {}, "broker-2": {}}
    for load in scenario.load:
        served[load.placed_on[0]][bundle_of(load)] = load.msgs_in_per_s
    usage: Mapping[str, float] = {
        name: (idle + cpu_s_per_msg * sum(rates.values())) / 0.5 for name, rates in served.items()
    }
    return tuple(LiveLook(-0.5 * number, usage, served) for number in range(1, 10))


def test_cost_and_idle_use_are_found_from_the_time_before_any_move() -> None:
    scenario = small_scenario()
    run = LiveRun(
        steps=(),
        looks=looks_of(scenario, cpu_s_per_msg=0.006, idle=0.02),
        first_round_s=4.0,
        interval_s=4.0,
        ended_s=24.0,
        publish_errors=0,
        publish_retries=0,
    )
    found = calibrated(scenario, run)
    assert found.brokers[0].cost.cpu_us_per_msg == pytest.approx(6000.0)
    assert found.brokers[0].background.cores == pytest.approx(0.02)
    assert found.noise.usage_fraction == pytest.approx(0.0)
    assert found.noise.rate_fraction == pytest.approx(0.0)
    assert without_noise(found).noise.usage_fraction == 0.0
