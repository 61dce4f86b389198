import os
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from loadmanager.cli import main
from loadmanager.simulator.results import Scores, scores_of
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.simulation_jobs import Job, jobs_of, run_job
from loadmanager.simulator.strategies import Strategy

SCENARIO = """\
title = "Two brokers"
duration_s = 480.0
step_s = 30.0
seed = 7

[[brokers]]
name = "b"
count = 2

[[load]]
namespace = "shop/orders"
bundles = 8
topics = 40
msgs_in_per_s = 60000.0
placed_on = ["b-1"]
patterns = [{kind = "jitter", fraction = 0.2}]

[leader]
settle_s = 0.0
tick_interval_s = 30.0
"""
"""A scenario file of eight minutes in which one of two brokers begins with everything."""


def written(file: Path, *more: str) -> Path:
    file.write_text("\n".join([SCENARIO, *more]))
    return file


def simulate(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["simulate", "--jobs", "1", *map(str, arguments)])


def small_scenario(**changed: Any) -> Scenario:
    fields = tomllib.loads(SCENARIO)
    del fields["step_s"], fields["leader"]["tick_interval_s"]
    return Scenario.model_validate(fields | {"duration_s": 240.0} | changed)


def small_jobs(
    seeds: int = 2, pairs: Sequence[str] = ("avg+avg", "uniform+round_robin"), **changed: Any
) -> list[Job]:
    strategies = [Strategy.parse(pair) for pair in pairs]
    return list(jobs_of([("two", small_scenario(**changed))], strategies, seeds))


def score_job(job: Job) -> Scores:
    return scores_of(run_job(job))


def seed_after_a_while(job: Job) -> int:
    """Return the job's seed; the first comes last."""
    time.sleep(0.2 if job.seed == 7 else 0.0)
    return job.seed


def seed_unless_the_process_dies(job: Job) -> int:
    """Return the job's seed, or end the process if it is the second."""
    if job.seed == 8:
        os._exit(9)
    return job.seed


def tell_and_hang(job: Job) -> int:
    """Leave a sign of the process in the working directory, and never end but for the first."""
    if job.seed != 7:
        Path(f"{os.getpid()}.begun").touch()
        time.sleep(600)
    return job.seed
