"""What each constant of the joint strategy is for, and what noise costs it.

``joint_evidence.py OUT.jsonl`` simulates the scenarios with each constant of `WITHOUT` set so that
what it does is gone, on seeds on which nothing was tuned; ``--noisy`` simulates each scenario with
noise, bursts and drift in its traffic instead. OUT keeps what is done: the command resumes. It
prints a table of means over the scenarios.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Final

from loadmanager.simulator.results import scores_of
from loadmanager.simulator.scenario import Burst, Jitter, Scenario
from loadmanager.simulator.scenario_files import find, load_scenario, shipped
from loadmanager.simulator.simulation_jobs import Job, run_job
from loadmanager.simulator.strategies import Strategy

LONG: Final = {"day-pattern", "diurnal-trend", "recorded-services", "slow-balancing", "thousand"}
SCENARIOS: Final = sorted(shipped().keys() - LONG)
SCORES: Final = ("gap", "gap_p95", "moved_ratio", "moves", "returned")
NEVER: Final = 1e9

WITHOUT: Final[Mapping[str, Mapping[str, float]]] = {
    "as it is": {},
    "usage at any load, rates never": {"standing.QUIET": 1e-6},
    "rates alone": {"standing.QUIET": NEVER},
    "usage from half of the level on": {"standing._SHARPNESS": 2},
    "above 0.9 as below": {"standing.URGENT": NEVER},
    "above 0.9 what is above alone": {"standing._RELIEF": 1.0},
    "heap always": {"standing._STEADY_SD": NEVER, "standing._STEADY_LOOKS": 0},
    "no bound of backgrounds by reports": {"standing._BELIEVED": 1.0},
    "no correction of all costs": {"standing._AGREES": NEVER},
    "no noise left out": {"standing._NOISE_SDS": 0.0},
    "no rounds before their time": {"standing.STANDS_OUT": NEVER},
    "no price for the move itself": {"standing.PER_MOVE": 0.0},
    "no price for connections": {"standing.PER_CONNECTIONS": 0.0},
    "no age": {"ages.HALF_PRICE_S": 1e12},
    "equal speeds": {"broker_figures._SPEED_SD": 1e-6},
    "speeds and backgrounds do not drift": {"broker_figures._DRIFT_PER_MIN": 0.0},
    "no jumps of backgrounds": {"broker_figures._JUMP_SDS": NEVER},
    "one span of a minute": {"broker_figures._SPANS": 1},
    "the last report alone": {"broker_figures._KEPT": 0.0},
    "full brokers teach": {"learning.FULL": NEVER},
    "costs are never forgotten": {"learning._KEPT_PER_MIN": 1.0},
    "no damped errors": {"learning._HUBER_SDS": NEVER},
    "first predictions are exact": {"learning._SUPPOSED_NOISE": 0.0},
    "idle brokers teach": {"learning._IDLE": 0.0},
    "reports over changes as exact as others": {"learning._UNSETTLED": 0.0, "learning._LAGS": 0.0},
    "changes of traffic last": {"persistence.SUPPOSED": 1.0, "persistence.SUPPOSED_NEW": 1.0},
    "one look is enough": {"persistence.LOOK_S": 1.0},
    "no turnover": {"persistence._MOST_RISK": 1.0, "persistence._LEAST_PRICE": NEVER},
    "no rolling restarts": {"restarts._LEAST": 1_000_000},
    "no exchanges": {"search._SWAP_TARGETS": 0},
    "four targets": {"search._TARGETS": 4},
    "common usage is supposed freely": {"unit_costs._COMMON_SD": 10.0},
}


@dataclass(frozen=True, slots=True)
class Cell:
    variant: str
    scenario: str
    seed: int


def noisy(scenario: Scenario) -> Scenario:
    """Return the scenario with noise of a fifth, five-fold bursts, and a drift within hours."""
    more = (
        Jitter(kind="jitter", fraction=0.2, memory_s=0.0),
        Burst(kind="burst", factor=5.0, length_s=10.0, every_s=500.0),
        Jitter(kind="jitter", fraction=0.2, memory_s=7200.0),
    )
    loads = [one.model_copy(update={"patterns": (*one.patterns, *more)}) for one in scenario.load]
    return scenario.model_copy(update={"load": tuple(loads)})


def patch(constants: Mapping[str, float]) -> None:
    """Set constants of ``loadmanager.core.joint`` in each module that has them."""
    for path, value in constants.items():
        module, name = path.split(".")
        home = sys.modules[f"loadmanager.core.joint.{module}"]
        former = getattr(home, name)
        rooms = ("loadmanager.core.joint.", "loadmanager.core.shedding.joint")
        users = [one for key, one in sys.modules.items() if key.startswith(rooms)]
        for user in users:
            if getattr(user, name, None) is former:
                setattr(user, name, value)


def scores(cell: Cell) -> dict[str, float]:
    scenario = load_scenario(find(cell.scenario))
    if cell.variant == "noisy":
        scenario = noisy(scenario)
    strategy = Strategy.parse("joint+joint")
    found = scores_of(
        run_job(Job(name=cell.scenario, scenario=scenario, strategy=strategy, seed=cell.seed))
    )
    return {name: getattr(found, name) for name in SCORES}


def cells(variants: list[str], seeds: range) -> Iterator[Cell]:
    for variant in variants:
        for scenario in SCENARIOS:
            for seed in seeds:
                yield Cell(variant, scenario, seed)


def row(name: str, by_scenario: list[list[dict[str, float]]]) -> str:
    """Return the means over scenarios of the medians over seeds."""
    of = [mean(median(one[score] for one in runs) for runs in by_scenario) for score in SCORES]
    return f"| {name} | {of[0]:.3f} | {of[1]:.3f} | {of[2]:.2f} | {of[3]:.1f} | {of[4]:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--noisy", action="store_true")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=91)
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    variants = ["as it is", "noisy"] if given.noisy else list(WITHOUT)
    done: dict[Cell, dict[str, float]] = {}
    if given.out.exists():
        for line in given.out.read_text().splitlines():
            kept = json.loads(line)
            done[Cell(*kept["cell"])] = kept["scores"]
    for variant in variants:
        constants = WITHOUT.get(variant, {})
        former = {
            path: getattr(
                sys.modules[f"loadmanager.core.joint.{path.split('.')[0]}"], path.split(".")[1]
            )
            for path in constants
        }
        patch(constants)
        for cell in cells([variant], seeds):
            if cell not in done:
                done[cell] = scores(cell)
                kept = {"cell": [cell.variant, cell.scenario, cell.seed], "scores": done[cell]}
                with given.out.open("a") as file:
                    file.write(json.dumps(kept) + "\n")
        patch(former)
    print("| what is gone | mean gap | p95 | moved | moves | back |\n|---|---|---|---|---|---|")
    for variant in variants:
        runs = [[done[Cell(variant, scenario, seed)] for seed in seeds] for scenario in SCENARIOS]
        print(row(variant, runs))


if __name__ == "__main__":
    main()
