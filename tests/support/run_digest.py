"""What a run was, as one short text: two runs that differ in a bit differ in it.

As a command it prints the digest of `SAMPLE` for the seed given.
"""

import hashlib
import sys
from dataclasses import fields

import numpy as np
from simulated_worlds import scenario

from loadmanager.simulator.engine import simulate
from loadmanager.simulator.results import Run
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.strategies import Strategy, planner_for


def sample() -> Scenario:
    return scenario(
        brokers=[{"name": "b", "count": 5, "cores": 2.0}, {"name": "late", "count": 1}],
        duration_s=500.0,
        step_s=5.0,
        load=[
            {
                "bundles": 24, "topics": 100, "msgs_in_per_s": 60_000.0,
                "skew": {"kind": "zipf"}, "placed": "random",
                "patterns": [{"kind": "jitter"}, {"kind": "burst", "every_s": 300.0}],
            },
            {"namespace": "tenant/new", "bundles": 8, "placed": "unowned"},
        ],
        events=[
            {"kind": "crash", "at_s": 100.0, "brokers": ["b-1"]},
            {"kind": "drain", "at_s": 200.0, "brokers": ["b-2"]},
            {"kind": "join", "at_s": 400.0, "brokers": ["b-1", "b-2"]},
        ],
    )  # fmt: skip


def run(seed: int, strategy: str = "threshold+avg") -> Run:
    played, pair = sample(), Strategy.parse(strategy)
    return simulate(played, planner_for(played, pair), seed=seed)


def digest(found: Run) -> str:
    summed = hashlib.sha256()
    for field in fields(found.timeline):
        value = getattr(found.timeline, field.name)
        summed.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    for field in fields(found):
        if field.name != "timeline":
            summed.update(repr(getattr(found, field.name)).encode())
    return summed.hexdigest()


if __name__ == "__main__":
    sys.stdout.write(digest(run(int(sys.argv[1]))))
