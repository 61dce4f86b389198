import math
import zlib
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pytest
from all_placements import runs_of_placements
from pictured_runs import a_run
from simulated_jobs import small_jobs
from strategy_ratings import (
    DOCUMENT,
    FOLDER,
    GUIDE,
    PROBLEMS,
    Cell,
    Figures,
    differing,
    every_cell,
    figures_of_placements,
    from_json,
    guide,
    medians,
    minutes_to_spread,
    misplaced,
    rating,
    to_json,
)

from loadmanager.simulator.scenario_files import load_scenario, shipped

FIGURES = from_json((FOLDER / "figures.json").read_text("utf-8"))


def test_the_committed_guide_has_the_figures() -> None:
    # Renew it with: make ratings PAIRS='joint+*', or .venv/bin/python
    # tests/support/strategy_ratings.py --guide if only words or settings changed.
    assert GUIDE.read_text("utf-8") == guide(FIGURES)


def test_each_pair_was_measured_in_both_modes_at_each_problem() -> None:
    assert set(FIGURES) == set(every_cell())
    for cell, found in FIGURES.items():
        assert list(found) == [one["key"] for one in PROBLEMS[cell.scenario]["measures"]]


def test_there_is_a_comment_for_each_difference_from_pip_364_and_for_nothing_else() -> None:
    comments = {(pair, scenario) for pair, of in DOCUMENT["comments"].items() for scenario in of}
    assert {(cell.pair, cell.scenario) for cell in differing(FIGURES)} == comments


@pytest.mark.parametrize(
    ("kind", "advice"),
    [(kind, one) for kind in ("choose", "avoid") for one in DOCUMENT[kind]],
    ids=lambda one: one if isinstance(one, str) else f"{one['pair']} {one['scenario']}",
)
def test_advice_is_what_its_scenario_expects_of_the_pair(kind: str, advice: dict[str, Any]) -> None:
    expected = [
        one
        for one in load_scenario(shipped()[advice["scenario"]]).expect
        if one.mode != "parity"
        and any(fnmatchcase(advice["pair"], each) for each in one.strategies)
    ]
    assert [one for one in expected if bool(one.known_failure) == (kind == "avoid")]


def test_figures_survive_being_written() -> None:
    figures: Figures = {Cell("load-jitter", "safe", "avg+avg"): {"moved": [0.0, math.inf, 2.5]}}
    assert from_json(to_json(figures)) == figures
    assert '"moved": [0.0, null, 2.5]' in to_json(figures)


@pytest.mark.parametrize(
    ("scenario", "figures", "rated"),
    [
        # A limit belongs to the better rating, "never" is bad, the worst figure counts.
        ("load-jitter", {"moved": 2.0}, "good"),
        ("load-jitter", {"moved": 2.1}, "normal"),
        ("load-jitter", {"moved": 20.0}, "normal"),
        ("load-jitter", {"moved": 20.1}, "bad"),
        ("slow-balancing", {"minutes": math.inf}, "bad"),
        ("heterogeneous-environment", {"too_full": 0.0, "apart": 0.0, "back": 0.0}, "good"),
        ("heterogeneous-environment", {"too_full": 0.0, "apart": 40.0, "back": 0.0}, "normal"),
        ("heterogeneous-environment", {"too_full": 15.0, "apart": 0.0, "back": 0.0}, "bad"),
    ],
)
def test_figures_are_rated(scenario: str, figures: dict[str, float], rated: str) -> None:
    assert rating(scenario, figures) == rated


def test_the_median_of_the_seeds_is_rated() -> None:
    cell = Cell("load-jitter", "parity", "avg+avg")
    assert medians({cell: {"moved": [0.0, 1.0, 50.0]}}, cell) == {"moved": 1.0}


def test_load_above_the_mean_is_misplaced() -> None:
    # Of 1.6 in all, 0.8 are above the mean of 0.4; after the move 0.2 are.
    moved = a_run(np.array([[0.8, 0.8, 0.0, 0.0], [0.5, 0.5, 0.3, 0.3]]))
    assert misplaced(moved).tolist() == pytest.approx([0.5, 0.125])
    # A broker that has not joined is in no mean.
    assert misplaced(a_run(np.array([[0.8, 0.8, math.nan, math.nan]]))).tolist() == [0.0]


def test_balanced_is_what_stays_so() -> None:
    hot, even = [0.8, 0.8, 0.0, 0.0], [0.4, 0.4, 0.4, 0.4]
    run = a_run(np.array([hot, hot, even, hot, even]), warm_up_s=0.0)
    assert minutes_to_spread(run) == 4.0
    assert minutes_to_spread(a_run(np.array([hot, even, hot]), warm_up_s=0.0)) == math.inf


@pytest.mark.parametrize(
    ("pair", "msgs_in_per_s", "asked"),
    [("overload+round_robin", 1_000.0, False), ("uniform+round_robin", 120_000.0, True)],
)
def test_the_first_placement_stands_for_all(pair: str, msgs_in_per_s: float, asked: bool) -> None:
    load = {
        "namespace": "shop/orders",
        "bundles": 8,
        "topics": 40,
        "msgs_in_per_s": msgs_in_per_s,
        "placed_on": ["b-1"],
    }
    found = runs_of_placements(small_jobs(1, [pair], load=[load])[0])
    assert len({id(run) for run in found.values()}) == (len(found) if asked else 1)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_figures_are_those_of_the_code() -> None:
    """Simulates some runs again: others whenever the figures change.

    Processors differ in the last bit of a sum, and once in a while a decision hangs on
    it; then a run is another one. So most have to agree, not all.
    """
    draw = np.random.default_rng(zlib.crc32(to_json(FIGURES).encode()))
    verdicts = {}
    for scenario in PROBLEMS:
        cells = [cell for cell in every_cell() if cell.scenario == scenario]
        for row in draw.choice(len(cells), 3, replace=False).tolist():
            cell = cells[row]
            again = figures_of_placements(cell.job(1))[cell.pair]
            verdicts[cell] = all(
                kept[0] == again[key] or abs(kept[0] - again[key]) <= 0.05 * max(abs(kept[0]), 1.0)
                for key, kept in FIGURES[cell].items()
            )
    assert sum(verdicts.values()) >= 0.8 * len(verdicts), f"{verdicts}; run: make ratings"
