"""What a simulation computes as its lower bound is one: no run is ever below it."""

import numpy as np
import pytest
from simulated_jobs import small_jobs

from loadmanager.simulator.simulation_jobs import run_job


@pytest.mark.parametrize("pair", ["avg+avg", "threshold+round_robin"])
def test_no_simulated_cluster_was_ever_below_its_bound(pair: str) -> None:
    classes = [
        {"name": "b", "count": 2, "cores": 4.0},
        {"name": "slow", "count": 1, "cost": {"cpu_us_per_msg": 60.0}},
    ]
    (job,) = small_jobs(1, [pair], brokers=classes, duration_s=900.0)
    line = run_job(job).timeline
    largest = np.where(line.present[:, :, None], line.demand, 0.0).max(axis=(1, 2))
    assert (line.unowned_msgs_per_s == 0).all()
    assert (largest >= line.bound * (1 - 1e-5)).all()
    assert (line.bound > 0).all()
