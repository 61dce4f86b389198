"""The same scenario in the simulator and with real processes: the same moves, the same loads."""

import json
from pathlib import Path

import pytest
from live_comparison import calibrated, compared, lived, simulated, without_noise
from live_scenario import live_scenario

from loadmanager.simulator.scenario_files import load_scenario

pytestmark = [pytest.mark.processes, pytest.mark.thorough, pytest.mark.timeout(300)]

SCENARIO = Path(__file__).parent / "three_brokers.toml"


# It compares what a leader decided on measured CPU: where the machine stood still for some of
# that time, the leader saw another load than was asked for, and it is measured again.
@pytest.mark.flaky(reruns=2)
async def test_simulator_makes_the_moves_that_a_real_leader_makes(tmp_path: Path) -> None:
    """What is usual is told in docs/simulator.md: the same moves, and 2 points of load apart."""
    scenario = load_scenario(SCENARIO)
    async with live_scenario(scenario, tmp_path) as ready:
        run = await ready.run()
    assert run.publish_errors == 0
    assert run.served_fraction == pytest.approx(1.0, abs=0.05), "the machine had no CPU for it"
    expected = simulated(without_noise(calibrated(scenario, run)), scenario.seed)
    real = lived(scenario, run)
    found = compared(real, expected)
    told = json.dumps(found.to_json()) + f"\nreal: {real}\nsimulated: {expected}"
    assert found.moves_simulated == 3, told
    assert found.same_prefix >= 1, told
    assert found.edits <= 1, told
    assert found.rounds_apart <= 1, told
    assert found.final_points_most <= 15, told
    assert found.traffic_points_most <= 15, told
    assert found.max_over_mean_live <= 1.4, told
