"""The same scenario in the simulator and with real processes: ``compare.py --runs 5``.

Prints a line of JSON for each run, then the range of each figure by strategies. The
simulator is given the cost of a message and the noise as the real run showed them
before anything moved; ``seeds_alike`` is how many of 20 seeds with that noise make the
very moves that the real leader made, in their order. ``machine_load`` is how many
processes of this machine, ours included, wanted to run in the last minute of the run.
Runs in which the machine could not serve what was asked for are left out of the ranges.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

SUPPORT = Path(__file__).parents[1] / "support"
sys.path.insert(0, str(SUPPORT))

from live_comparison import (  # noqa: E402 - found through the line above
    Story,
    calibrated,
    compared,
    lived,
    simulated,
    without_noise,
)
from live_scenario import live_scenario  # noqa: E402 - the same

from loadmanager.config.balancing import (  # noqa: E402 - the same
    PlacementSettings,
    PlannerSettings,
    SheddingSettings,
)
from loadmanager.core.ids import namespace_of  # noqa: E402 - the same
from loadmanager.simulator.scenario import Scenario  # noqa: E402 - the same
from loadmanager.simulator.scenario_files import load_scenario  # noqa: E402 - the same

SCENARIOS: Final = Path(__file__).parent
SEEDS: Final = 20
REST_S: Final = 8.0
UNSERVED_FRACTION: Final = 0.03

PAIRS: Final[Mapping[str, Mapping[str, Any]]] = {
    "threshold": {},
    "avg": {
        "shedding": SheddingSettings(
            strategy="avg",
            grace_period_s=REST_S,
            settings={"min_msgs_per_s": 2, "low_hits": 2, "high_hits": 1},
        ),
        "placement": PlacementSettings(strategy="avg"),
        "planner": PlannerSettings(),
    },
    "transfer": {
        "shedding": SheddingSettings(
            strategy="transfer",
            grace_period_s=REST_S,
            settings={"target_std": 0.07, "hits": 1, "shedding_delay_s": 6.0},
        ),
        "placement": PlacementSettings(strategy="least_resource_usage_with_weight"),
        "planner": PlannerSettings(),
    },
}
"""What is changed in the scenario: strategies, with thresholds for so small a cluster."""


async def measure(scenario: Scenario) -> tuple[dict[str, float], dict[str, list[str]]]:
    with tempfile.TemporaryDirectory() as folder:
        async with live_scenario(scenario, Path(folder)) as ready:
            run = await ready.run()
    story, noisy = lived(scenario, run), calibrated(scenario, run)
    expected = simulated(without_noise(noisy), scenario.seed)
    ways = [step.way for step in story.steps]
    alike = (
        [step.way for step in simulated(noisy, seed).steps] == ways for seed in range(1, SEEDS + 1)
    )
    (brokers,) = noisy.brokers
    figures = {
        **compared(story, expected).to_json(),
        "seeds_alike": sum(alike),
        "cpu_us_per_msg": brokers.cost.cpu_us_per_msg,
        "usage_noise": noisy.noise.usage_fraction,
        "rate_noise": noisy.noise.rate_fraction,
        "served": run.served_fraction,
        "pause_ms": 1000 * median(run.pauses_s) if run.pauses_s else 0.0,
        "retries": run.publish_retries,
        "machine_load": os.getloadavg()[0],
    }
    return figures, {"live": moves_of(story), "simulated": moves_of(expected)}


def moves_of(story: Story) -> list[str]:
    return [
        f"{step.round}: {namespace_of(step.bundle)} {step.source} > {step.target}"
        for step in story.steps
    ]


def told(rows: Sequence[Mapping[str, float]]) -> str:
    return "\n".join(
        f"  {name:24} {min(values):8.2f} {median(values):8.2f} {max(values):8.2f}"
        for name in rows[0]
        if (values := [row[name] for row in rows])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--scenario", default="three_brokers")
    parser.add_argument("--pairs", default=",".join(PAIRS), help="of " + ", ".join(PAIRS))
    wanted = parser.parse_args()
    scenario = load_scenario(SCENARIOS / f"{wanted.scenario}.toml")
    found: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    for number in range(1, wanted.runs + 1):
        for pair in wanted.pairs.split(","):
            figures, moves = asyncio.run(measure(scenario.model_copy(update=PAIRS[pair])))
            if abs(figures["served"] - 1) <= UNSERVED_FRACTION:
                found[pair].append(figures)
            print(json.dumps({"pair": pair, "run": number, **figures, **moves}), flush=True)  # noqa: T201 - a script prints
    for pair, rows in found.items():
        print(f"{pair}: least, median and most of {len(rows)} runs\n{told(rows)}")  # noqa: T201 - the same


if __name__ == "__main__":
    main()
