"""A day of a large cluster, and an hour of a very large one, simulated on one core."""

import json
import os
import subprocess
import sys
from typing import Final

import large_simulation
import pytest
from figures import TooSlow, emit

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

PEAK_BYTES: Final = 1e9
SIZES: Final = {
    # brokers, bundles, hours: seconds it may take
    (100, 10_000, 24): 60.0,
    (1000, 100_000, 1): 120.0,
}
STRATEGIES: Final = {
    "the default strategies": "avg+avg",
    "the shedder that takes longest": "transfer+least_resource_usage_with_weight",
}


# Others may use the machine: CPU time says little of them, but what the processor shares
# between its cores (caches, clock) it does not say either.
@pytest.mark.flaky(reruns=1, only_rerun=["TooSlow"])
@pytest.mark.parametrize("figure", STRATEGIES)
@pytest.mark.parametrize("size", SIZES, ids="{0[0]} x {0[1]} x {0[2]} h".format)
def test_a_large_cluster_is_simulated_in_time_and_memory(
    size: tuple[int, int, int], figure: str
) -> None:
    brokers, bundles, hours = size
    told = _measured(*size, STRATEGIES[figure])
    emit(
        "simulator",
        figure=figure,
        strategy=STRATEGIES[figure],
        brokers=brokers,
        bundles=bundles,
        simulated_hours=hours,
        **told,
        target_cpu_s=SIZES[size],
        target_peak_bytes=PEAK_BYTES,
    )
    assert told["rounds"] == hours * 60
    assert told["moves"] > 0
    assert told["peak_bytes"] <= PEAK_BYTES
    if told["cpu_s"] > SIZES[size]:
        raise TooSlow(f"{told['cpu_s']:.1f} s; expected at most {SIZES[size]:g} s")


def _measured(brokers: int, bundles: int, hours: int, strategy: str) -> dict[str, float]:
    """Return what a fresh process takes, on one core."""
    command = [sys.executable, large_simulation.__file__, *map(str, (brokers, bundles, hours))]
    one_core = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, strategy],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **one_core},
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found
