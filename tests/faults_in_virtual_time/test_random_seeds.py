import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner

from loadmanager.common.context import Context
from loadmanager.config.sections import SheddingSettings
from loadmanager.ports.broker import BrokerState
from loadmanager.simulator.simulation_jobs import SimulationDied
from tests.testbed.faults import campaign
from tests.testbed.faults.__main__ import main
from tests.testbed.faults.campaign import Totals, outcomes
from tests.testbed.faults.seed_run import ACTIONS, SeedOutcome, run_seed, seeded_config

QUICK_SEEDS = range(8)


@pytest.mark.parametrize("seed", QUICK_SEEDS)
def test_no_fault_breaks_a_promise_and_peace_mends_all(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.violation, "\n".join([*outcome.last_lines, outcome.violation])


@pytest.mark.simulated
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seeds", [range(500, 506), pytest.param(range(506, 520), marks=pytest.mark.thorough)]
)
def test_no_fault_breaks_a_promise_with_the_default_strategy(seeds: Sequence[int]) -> None:
    # The other seeds have ThresholdShedder, which moves more.
    default = seeded_config(
        shedding={"strategy": SheddingSettings().strategy}, placement={"strategy": None}
    )
    for seed in seeds:
        outcome = run_seed(seed, config=default)
        assert not outcome.violation, "\n".join([*outcome.last_lines, outcome.violation])


@pytest.mark.simulated
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    "seeds", [range(1000, 1016), pytest.param(range(1016, 1300), marks=pytest.mark.thorough)]
)
def test_no_seed_of_many_breaks_a_promise(seeds: Sequence[int]) -> None:
    totals = Totals()
    for outcome in outcomes(seeds, jobs=len(os.sched_getaffinity(0))):
        totals.add(outcome)
    assert totals.seeds == len(seeds)
    assert [f"{one.seed}: {one.violation}" for one in totals.failures] == []
    assert {one.name for one in ACTIONS} <= totals.happened.keys()
    assert totals.counted["answers"] > 100 * len(seeds)
    assert totals.counted["terms"] > 1.6 * len(seeds)


def _in_a_process(*arguments: str, hash_seed: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.testbed.faults", *arguments, "--json"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_seed_leaves_the_same_trace_in_processes_that_hash_differently() -> None:
    arguments = ("--seeds", "2", "--first-seed", "11", "--steps", "10", "--jobs", "1")
    one = _in_a_process(*arguments, hash_seed="1")
    other = _in_a_process(*arguments, hash_seed="2")
    assert [run["seed"] for run in one[:-1]] == [11, 12]
    assert [run["digest"] for run in one[:-1]] == [run["digest"] for run in other[:-1]]
    assert one[0]["digest"] != one[1]["digest"]


def test_a_seed_does_the_same_whatever_ran_before_it() -> None:
    alone = run_seed(12, steps=8)
    run_seed(11, steps=8)
    after = run_seed(12, steps=8)
    assert (alone.digest, alone.happened) == (after.digest, after.happened)


def _dies(seed: int) -> SeedOutcome:
    os.kill(os.getpid(), signal.SIGKILL)
    return _found(seed)


@pytest.mark.simulated
def test_a_process_that_dies_in_a_run_is_an_error() -> None:
    with pytest.raises(SimulationDied):
        list(campaign.outcomes(range(4), jobs=2, run_one=_dies))


def unfenced(context: Context) -> Context:
    """Let leases last for ever: nothing fences the broker any more."""
    renew = context.broker.renew_lease

    async def for_ever(
        *, agent_epoch: int, until_s: float | None, incarnation: str | None
    ) -> BrokerState:
        until_s = None if until_s is None else 1e9
        return await renew(agent_epoch=agent_epoch, until_s=until_s, incarnation=incarnation)

    context.broker.renew_lease = for_ever  # type: ignore[method-assign]  # that is the point
    return context


@pytest.mark.simulated
def test_a_build_that_fences_nothing_is_found_out_and_found_out_again_by_its_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(campaign, "run_seed", partial(run_seed, build=unfenced))
    found = CliRunner().invoke(main, ["--seeds", "6", "--jobs", "1"])
    assert found.exit_code == 1, found.output
    seed = re.search(r"^seed (\d+): (one_server broken at .*)$", found.output, re.MULTILINE)
    assert seed, found.output
    told = f"python -m tests.testbed.faults --seeds 1 --first-seed {seed[1]} --steps 40 --jobs 1"
    assert f"to repeat it: {told}" in found.output
    assert re.search(r"^  [\d.]+ step \d+ .+: .+$", found.output, re.MULTILINE)
    again = CliRunner().invoke(main, told.partition(".faults ")[2].split())
    assert again.exit_code == 1
    assert seed[0] in again.output.splitlines()


def _found(seed: int) -> SeedOutcome:
    """Stand in for a run that finds something in each odd seed."""
    outcome = SeedOutcome(seed=seed, steps=3, digest="d", virtual_s=7.0, real_s=0.1)
    if seed % 2 == 0:
        return outcome
    last_lines = ("1001.0 step 3 kill a broker: b",)
    return replace(outcome, violation="one_server broken", last_lines=last_lines)


def test_a_violation_ends_with_1_and_is_told_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(campaign, "run_seed", lambda seed, *, steps: _found(seed + 0 * steps))
    arguments = ["--seeds", "3", "--first-seed", "4", "--steps", "9", "--jobs", "1"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    assert "failed_seeds: [5]\n\nseed 5: one_server broken\n" in done.output
    assert done.output.endswith(
        "  1001.0 step 3 kill a broker: b\n"
        "to repeat it: python -m tests.testbed.faults --seeds 1 --first-seed 5 --steps 9 --jobs 1\n"
    )
    as_json = CliRunner().invoke(main, [*arguments, "--json"])
    assert as_json.exit_code == 1
    assert json.loads(as_json.output.splitlines()[-1])["failed_seeds"] == [5]
