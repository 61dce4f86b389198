import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictured_runs import a_run
from simulated_jobs import (
    seed_after_a_while,
    seed_unless_the_process_dies,
    small_jobs,
    small_scenario,
    tell_and_hang,
)
from waiting import eventually

from loadmanager.simulator import simulation_jobs
from loadmanager.simulator.engine import simulate
from loadmanager.simulator.results import SCORE_DOCS, scores_of
from loadmanager.simulator.scenario import Expectation
from loadmanager.simulator.simulation_jobs import (
    Compared,
    Judged,
    Outcome,
    SimulationDied,
    Spread,
    compared,
    jobs_of,
    judged,
    ranked,
    results_of,
    run_job,
)
from loadmanager.simulator.strategies import Mode, Strategy, parse_strategies, planner_for

SCORES = scores_of(a_run(np.array([[0.5, 0.5]] * 4)))


def test_jobs_go_by_scenario_strategy_and_seed_from_the_scenarios_own_on() -> None:
    one, other = small_scenario(), small_scenario(seed=100)
    pairs = parse_strategies("*")[:2]
    found = [
        (job.name, job.strategy, job.seed) for job in jobs_of([("a", one), ("b", other)], pairs, 2)
    ]
    assert found == [
        ("a", pairs[0], 7), ("a", pairs[0], 8), ("a", pairs[1], 7), ("a", pairs[1], 8),
        ("b", pairs[0], 100), ("b", pairs[0], 101), ("b", pairs[1], 100), ("b", pairs[1], 101),
    ]  # fmt: skip
    assert [job.seed for job in jobs_of([("a", one)], pairs[:1], 3, first_seed=0)] == [0, 1, 2]


def test_a_job_is_run_with_its_strategy_mode_settings_and_seed() -> None:
    (job,) = small_jobs(1, ["avg+avg"])
    strategy = Strategy.parse("avg+avg", "parity", ("low_hits=1", "high_hits=1"))
    run = run_job(replace(job, strategy=strategy))
    assert run.moves
    planner = planner_for(job.scenario, strategy)
    assert run.moves == simulate(job.scenario, planner, seed=7).moves
    assert run.moves != run_job(job).moves


def wait_until_only(others: set[BaseProcess]) -> None:
    """Return once all processes but ``others`` have ended.

    Two threads may wait for one process, and then the later of them says that it is over.
    """
    deadline_s = time.monotonic() + 60.0
    while not others >= set(multiprocessing.active_children()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.simulated
def test_the_order_is_kept_when_the_first_is_done_last() -> None:
    others: set[BaseProcess] = set(multiprocessing.active_children())
    results = results_of(small_jobs(6, ["avg+avg"]), seed_after_a_while, processes=2)
    assert [seed for _, seed in results] == [7, 8, 9, 10, 11, 12]
    wait_until_only(others)


@pytest.mark.simulated
def test_a_process_that_dies_is_told_with_what_it_did() -> None:
    others: set[BaseProcess] = set(multiprocessing.active_children())
    with pytest.raises(SimulationDied, match=r"two with avg\+avg, safe, seed .*--jobs"):
        list(results_of(small_jobs(6, ["avg+avg"]), seed_unless_the_process_dies, processes=2))
    wait_until_only(others)


@pytest.mark.simulated
async def test_who_stops_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others: set[BaseProcess] = set(multiprocessing.active_children())
    monkeypatch.chdir(tmp_path)
    results = results_of(small_jobs(9, ["avg+avg"]), tell_and_hang, processes=2)
    assert next(results)[1] == 7
    await eventually(lambda: len(list(tmp_path.glob("*.begun"))) == 2)
    results.close()
    wait_until_only(others)


def test_ctrl_c_while_processes_start_is_not_lost_and_breaks_none_off() -> None:
    now = threading.Event()
    steps: list[str] = []

    def take_it() -> None:
        now.wait()
        signal.raise_signal(signal.SIGINT)

    def start() -> None:
        with simulation_jobs._interrupts_for_this_process_alone():
            os.kill(os.getpid(), signal.SIGINT)
            now.set()
            other.join()
            steps.append("started")

    # It reaches any thread, such as one from before, which does not know of the block.
    other = threading.Thread(target=take_it)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        start()
    assert steps == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_seeds_are_summed_up_for_each_strategy_as_soon_as_they_are_there() -> None:
    jobs = small_jobs(3)
    moves = iter([1, 5, 2, 7, 7, 7])
    results = ((job, replace(SCORES, moves=next(moves))) for job in jobs)
    found = compared(results)
    first = next(found)
    assert (first.name, first.strategy.name, first.seeds) == ("two", "avg+avg", (7, 8, 9))
    assert first.spreads["moves"] == Spread(2, 1, 5)
    assert first.median("moves") == 2
    assert [one.moves for one in first.runs] == [1, 5, 2]
    (second,) = found
    assert second.spreads["moves"] == Spread(7, 7, 7)
    assert not list(compared(()))


def test_the_best_is_closest_to_the_bound_then_overloads_least_then_interrupts_least() -> None:
    # Overload, gap and interruption in the order of the pairs; half a minute and 0.001 are no
    # difference.
    found = [(0, 0.3, 0), (0.4, 0.101, 5), (0.0, 0.1, 9), (5, 0.1, 1), (0, float("nan"), 0)]
    reached = [
        replace(SCORES, overload_min=overload, priced_gap=gap, interrupted_client_s=interrupted)
        for overload, gap, interrupted in found
    ]
    jobs = small_jobs(1, [pair.name for pair in parse_strategies("*")[:5]])
    best = ranked(compared(zip(jobs, reached, strict=True)))
    order = [jobs.index(next(job for job in jobs if job.strategy == one.strategy)) for one in best]
    assert order == [1, 2, 3, 0, 4], "NaN is last"


PAIR = "threshold+round_robin"


def found(spread: Spread, pair: str = PAIR, mode: Mode = "safe", seeds: int = 3) -> Compared:
    return Compared(
        name="two",
        strategy=Strategy.parse(pair, mode),
        seeds=tuple(range(seeds)),
        runs=(),
        spreads=dict.fromkeys(SCORE_DOCS, spread),
    )


def judge(spread: Spread, **expected: Any) -> Judged:
    (one,) = judged([Expectation(score="moves", **expected)], found(spread))
    return one


@pytest.mark.parametrize(
    ("median", "expected", "outcome"),
    [
        (5.0, {"most": 5}, Outcome.HELD),
        (5.1, {"most": 5}, Outcome.FAILED),
        (5.0, {"least": 5}, Outcome.HELD),
        (4.9, {"least": 5}, Outcome.FAILED),
        (4.9, {"least": 4, "most": 5}, Outcome.HELD),
        (3.9, {"least": 4, "most": 5}, Outcome.FAILED),
        (None, {"most": 1e9}, Outcome.FAILED),
        (None, {"least": 60}, Outcome.HELD),
        (400, {"least": 100, "known_failure": "it sheds for ever"}, Outcome.SHOWN),
        (40, {"least": 100, "known_failure": "it sheds for ever"}, Outcome.NOT_SHOWN),
    ],
)
def test_the_median_has_to_lie_within_the_bounds(
    median: float | None, expected: dict[str, Any], outcome: Outcome
) -> None:
    one = judge(Spread(median, 0.0, None), **expected)
    assert one.outcome is outcome
    assert one.holds is (outcome in {Outcome.HELD, Outcome.SHOWN})


@pytest.mark.parametrize(
    ("patterns", "mode", "speaks"),
    [
        (("*",), None, True),
        ((PAIR,), None, True),
        (("threshold+*",), "safe", True),
        (("avg+*", "*+round_robin"), "safe", True),
        (("avg+*",), None, False),
        (("*",), "parity", False),
    ],
)
def test_only_expectations_of_a_strategy_and_its_mode_are_held_against_it(
    patterns: tuple[str, ...], mode: Mode | None, *, speaks: bool
) -> None:
    one = Expectation(score="gap", most=1, strategies=patterns, mode=mode)
    assert bool(list(judged([one], found(Spread(0.0, 0.0, 0.0))))) is speaks


def test_it_says_what_was_expected_and_what_was_found() -> None:
    (one,) = judged(
        [Expectation(score="balance_s", least=60, most=600)], found(Spread(1234.5678, 12.0, None))
    )
    assert str(one) == (
        "failed: two: threshold+round_robin, safe: expected balance_s at least 60 and at most 600 "
        "s; found 1235 (12 to never over 3 seeds)"
    )


def test_a_known_failure_is_told_in_its_own_words() -> None:
    (one,) = judged(
        [Expectation(score="moves", least=100, known_failure="sheds far too much")],
        found(Spread(432.0, 432.0, 432.0), mode="parity", seeds=1),
    )
    assert str(one) == (
        "known failure shown: two: threshold+round_robin, parity: expected moves at least 100; "
        "found 432 (sheds far too much)"
    )
