"""A small simulated cluster whose costs are known, and its history."""

from pathlib import Path
from typing import Any, Final

from loadmanager.adapters.history.sink import recorded
from loadmanager.simulator.engine import simulate
from loadmanager.simulator.recording import Recording, origin_of
from loadmanager.simulator.results import Run
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.strategies import Strategy, planner_for

PAIR: Final = "threshold+least_long_term_message_rate"
HOURS: Final = 3
REPLAYED: Final[dict[str, Any]] = {
    "strategy": (PAIR, "avg+avg"),
    "setting": ("margin=0.02,0.1",),
    "segment_h": 1.0,
}
"""Options of the job ``replay``: four combinations."""

SCENARIO: Final = Scenario.model_validate(
    {
        "title": "small",
        "duration_s": HOURS * 3600.0,
        "step_s": 10.0,
        "brokers": [
            {"name": "old", "count": 3, "cores": 4.0, "cost": {"cpu_us_per_msg": 40.0}},
            {"name": "new", "count": 3, "cores": 8.0, "cost": {"cpu_us_per_msg": 20.0}},
        ],
        "load": [
            {
                "namespace": f"tenant/{name}",
                "bundles": 16,
                "topics": 64,
                "msgs_in_per_s": msgs_in_per_s,
                "skew": {"kind": "log_normal", "sigma": 1.0},
                "placed": "random",
                "patterns": [
                    {"kind": "day", "spread_h": 3.0},
                    {"kind": "jitter", "fraction": 0.1, "memory_s": 120.0},
                    {"kind": "burst", "factor": 3.0, "length_s": 300.0, "every_s": 3600.0},
                ],
            }
            for name, msgs_in_per_s in (
                ("orders", 60_000.0),
                ("clicks", 90_000.0),
                ("logs", 9_000.0),
            )
        ],
        "events": [
            {"kind": "crash", "at_s": 3000.0, "brokers": ["old-1"]},
            {"kind": "join", "at_s": 4500.0, "brokers": ["old-1"]},
        ],
    }
)
"""Six brokers of two classes, 48 bundles in three namespaces, one crash."""


def large_scenario(brokers: int, bundles: int, hours: float) -> Scenario:
    end_s = hours * 3600.0
    content: dict[str, Any] = {
        "title": f"{brokers} brokers, {bundles} bundles",
        "duration_s": end_s,
        "step_s": 10.0,
        "brokers": [
            {"name": "small", "count": brokers // 2, "cores": 8.0},
            {"name": "large", "count": brokers - brokers // 2, "cores": 16.0},
        ],
        "load": [
            {
                "namespace": "tenant/space",
                "bundles": bundles,
                "topics": bundles * 10,
                "msgs_in_per_s": brokers * 90_000.0,
                "skew": {"kind": "log_normal", "sigma": 2.0},
                "placed": "random",
                "patterns": [
                    {"kind": "day", "spread_h": 3.0},
                    {"kind": "jitter", "fraction": 0.1, "memory_s": 120.0},
                    {"kind": "burst", "factor": 3.0, "length_s": 300.0, "every_s": 14_400.0},
                ],
            }
        ],
        "events": [
            {"kind": "crash", "at_s": end_s * 0.2, "brokers": ["small-1", "large-1"]},
            {"kind": "drain", "at_s": end_s * 0.4, "brokers": ["small-2"]},
            {"kind": "join", "at_s": end_s * 0.6, "brokers": ["small-1", "small-2", "large-1"]},
        ],
    }
    return Scenario.model_validate(content)


def write_history(directory: Path, scenario: Scenario = SCENARIO) -> Run:
    strategy = Strategy.parse(PAIR)
    planner = planner_for(scenario, strategy)
    with recorded(directory, origin_of(scenario, strategy.name, 1)) as sink:
        witness = Recording(scenario, planner, sink)
        return simulate(scenario, planner, seed=1, witness=witness)
