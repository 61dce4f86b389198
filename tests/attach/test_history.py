"""`loadmanager attach --history`: what it writes for the pipeline."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_pulsar import FakePulsar
from history_disks import finished, lines_in

from loadmanager.cli import main


def attached(pulsar: FakePulsar, folder: Path, *more: str) -> list[Mapping[str, Any]]:
    """Take one window; return the lines of history in their order, reports first."""
    found = CliRunner().invoke(
        main,
        [
            *("attach", "--pulsar", pulsar.url, "--interval", "0.3", "--once", "--json"),
            *("--state-dir", str(folder / "state"), "--history", str(folder / "history"), *more),
        ],
    )
    assert found.exit_code == 0, found.output
    return list(lines_in(*finished(folder / "history")))


def kinds(lines: list[Mapping[str, Any]]) -> Counter[str]:
    return Counter(one["kind"] for one in lines)


def test_a_round_of_balancing_is_told_whole(pulsar: FakePulsar, tmp_path: Path) -> None:
    lines = attached(pulsar, tmp_path, "--balance")
    assert kinds(lines) == {
        "report": 3,
        "term": 2,
        "round": 1,
        "move": 5,
        "task": 10,
        "hand_over": 5,
    }
    assert {one["cluster"] for one in lines} == {"research"}
    (first,) = (
        one for one in lines if one["kind"] == "report" and one["broker"] == pulsar.brokers[0].name
    )
    assert len(first["bundles"]["bundle"]) == 8
    assert first["msgs_in_per_s"] * first["window_s"] == pytest.approx(400.0, rel=1e-4)
    (told,) = (one for one in lines if one["kind"] == "round")
    assert (told["outcome"], told["shedder"], told["moves"]) == ("moved", "greedy_rate", 5)
    assert (told["steering"], told["base"], told["bundles_known"]) == ("active", False, 8)
    moves = {one["bundle"]: one for one in lines if one["kind"] == "move"}
    assert {one["outcome"] for one in moves.values()} == {"moved"}
    served = {one["bundle"]: one for one in lines if one["kind"] == "hand_over"}
    assert {one["outcome"] for one in served.values()} == {"finished"}
    assert {name: one["target"] for name, one in served.items()} == {
        name: one["target"] for name, one in moves.items()
    }


def test_without_balance_moves_are_told_as_observed(pulsar: FakePulsar, tmp_path: Path) -> None:
    lines = attached(pulsar, tmp_path)
    assert kinds(lines) == {"report": 3, "term": 2, "round": 1, "move": 5}
    (told,) = (one for one in lines if one["kind"] == "round")
    assert (told["outcome"], told["steering"], told["observed"]) == ("observed", "observing", 5)
    assert {one["outcome"] for one in lines if one["kind"] == "move"} == {"observed"}


def test_moves_that_a_limit_kept_are_told_as_not_ordered(
    pulsar: FakePulsar, tmp_path: Path
) -> None:
    lines = attached(pulsar, tmp_path, "--balance", "--moves-per-hour", "2")
    outcomes = Counter(one["outcome"] for one in lines if one["kind"] == "move")
    assert outcomes == {"moved": 2, "failed": 3}
    lines = attached(pulsar, tmp_path / "shut", "--balance", "--moves-per-minute", "1")
    (told,) = (one for one in lines if one["kind"] == "round")
    assert told["outcome"] == "moved"


def test_a_split_is_told_with_its_parts(pulsar: FakePulsar, tmp_path: Path) -> None:
    whole = "bench/skew/0x00000000_0xffffffff"
    pulsar.brokers[0].owned[:] = [whole]
    lines = attached(pulsar, tmp_path, "--balance", "--split")
    (cut,) = (one for one in lines if one["kind"] == "cut")
    assert (cut["action"], cut["whole"]) == ("split", whole)
    assert pulsar.brokers[0].owned == cut["parts"]
    assert [one["state"] for one in lines if one["kind"] == "task"] == ["ordered", "serving"]


def test_history_is_of_rounds_alone(pulsar: FakePulsar, tmp_path: Path) -> None:
    found = CliRunner().invoke(
        main, ["attach", "--pulsar", pulsar.url, "--doctor", "--history", str(tmp_path)]
    )
    assert found.exit_code == 2
    assert "--history is not given with --doctor" in found.output
