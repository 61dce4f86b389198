"""A simulation of a large cluster in a process of its own: what it takes, as JSON."""

import json
import resource
import sys
import time
from typing import Any

from loadmanager.simulator.engine import simulate
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.strategies import Strategy, planner_for


def scenario(brokers: int, bundles: int, hours: float) -> Scenario:
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


def measure(brokers: int, bundles: int, hours: float, strategy: str) -> dict[str, object]:
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    played, pair = scenario(brokers, bundles, hours), Strategy.parse(strategy)
    run = simulate(played, planner_for(played, pair), strategy=pair.name, seed=1)
    return {
        "wall_s": time.perf_counter() - began_s,
        "cpu_s": time.process_time() - began_cpu_s,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "rounds": run.rounds,
        "moves": len(run.moves),
        "largest_demand_at_the_end": float(run.timeline.demand[-1].max()),
        "bound_at_the_end": float(run.timeline.bound[-1]),
    }


if __name__ == "__main__":
    sizes, pair_name = sys.argv[1:4], sys.argv[4]
    found = measure(int(sizes[0]), int(sizes[1]), float(sizes[2]), pair_name)
    sys.stdout.write(json.dumps(found))
