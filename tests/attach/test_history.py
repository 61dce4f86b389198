"""`loadmanager attach --history`: what it writes for the pipeline."""

import signal
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from attach_process import attached as attach_process
from fake_pulsar import FakePulsar, lies_in
from history_sinks import finished, lines_in
from replay_events import events_of
from replayed import replayed

from loadmanager.adapters.history.sink import ThreadedHistory
from loadmanager.pipeline.replay.combinations import combinations
from loadmanager.pipeline.replay.segment_replay import RECORDED
from tests.attach.conftest import attach


def attached(pulsar: FakePulsar, folder: Path, *more: str) -> list[Mapping[str, Any]]:
    """Take one window; return the lines of history in their order, reports first."""
    folders = ("--state-dir", str(folder / "state"), "--history", str(folder / "history"))
    found = attach(pulsar, "--once", "--json", *folders, *more)
    assert found.exit_code == 0, found.output
    return list(lines_in(*finished(folder / "history")))


def kinds(lines: list[Mapping[str, Any]]) -> Counter[str]:
    return Counter(one["kind"] for one in lines)


def test_the_loop_does_not_wait_for_the_disk(
    pulsar: FakePulsar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed_by: list[threading.Thread] = []
    close = ThreadedHistory.close

    def closed(self: ThreadedHistory, within_s: float) -> None:
        closed_by.append(threading.current_thread())
        close(self, within_s)

    monkeypatch.setattr(ThreadedHistory, "close", closed)
    attached(pulsar, tmp_path)
    assert len(closed_by) == 1
    assert closed_by != [threading.main_thread()]


def test_a_round_of_balancing_is_told_whole(pulsar: FakePulsar, tmp_path: Path) -> None:
    lines = attached(pulsar, tmp_path, "--balance")
    assert kinds(lines) == {
        "report": 3,
        "term": 2,
        "tick": 1,
        "bundles": 1,
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
    assert first["msgs_in_per_s"] == pytest.approx(400.0, rel=1e-4)
    (told,) = (one for one in lines if one["kind"] == "round")
    assert (told["outcome"], told["shedder"], told["moves"]) == ("moved", "JointShedder", 5)
    assert (told["steering"], told["base"], told["bundles_known"]) == ("active", True, 8)
    moves = {one["bundle"]: one for one in lines if one["kind"] == "move"}
    assert {one["outcome"] for one in moves.values()} == {"moved"}
    served = {one["bundle"]: one for one in lines if one["kind"] == "hand_over"}
    assert {one["outcome"] for one in served.values()} == {"finished"}
    assert {name: one["target"] for name, one in served.items()} == {
        name: one["target"] for name, one in moves.items()
    }


def test_without_balance_moves_are_told_as_observed(pulsar: FakePulsar, tmp_path: Path) -> None:
    lines = attached(pulsar, tmp_path)
    assert kinds(lines) == {"report": 3, "term": 2, "tick": 1, "bundles": 1, "round": 1, "move": 5}
    (told,) = (one for one in lines if one["kind"] == "round")
    assert (told["outcome"], told["steering"], told["observed"]) == ("observed", "observing", 5)
    assert {one["outcome"] for one in lines if one["kind"] == "move"} == {"observed"}


def test_moves_a_limit_kept_are_told_as_not_ordered(pulsar: FakePulsar, tmp_path: Path) -> None:
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


def replay(lines: list[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Replay history as recorded, and with the default strategy; return columns of rounds."""
    reports = {
        (one["broker"], one["reported_at_ms"]): one for one in lines if one["kind"] == "report"
    }
    found = events_of(reports, [one for one in lines if one["kind"] != "report"])
    return dict(replayed(found, combinations(("avg+avg",), ())))


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("avg", {"high_hits": 0, "low_hits": 0}),
        ("joint", {}),
        ("transfer", {"hits": 0}),
        ("threshold", {}),
    ],
)
def test_a_round_is_replayed_as_it_was_and_by_other_strategies(
    pulsar: FakePulsar, tmp_path: Path, strategy: str, settings: Mapping[str, int]
) -> None:
    first = pulsar.brokers[0]
    for broker in pulsar.brokers:
        cpu = 180.0 if broker is first else 10.0
        broker.load_report = {"cpu": {"usage": cpu, "limit": 200.0}}
    first.grows.update(dict.fromkeys(first.grows, (5e3, 1e4, 5e6, 1e7)))
    # One bundle stays for a topic in it; the first one that would be chosen otherwise.
    internal = "persistent://bench/skew/__internal"
    first.topics[internal] = [1.0, 0.0, 1.0, 0.0]
    first.grows[internal] = (9e3, 2e4, 9e6, 2e7)
    config = tmp_path / "attach.toml"
    config.write_text(
        f'[shedding]\nstrategy = "{strategy}"\n[shedding.settings]\n'
        + "".join(f"{key} = {value}\n" for key, value in settings.items())
    )
    lines = attached(pulsar, tmp_path, "--config", str(config))
    moved = {one["bundle"] for one in lines if one["kind"] == "move"}
    assert moved
    assert not any(lies_in(internal, one) for one in moved)
    found = replay(lines)
    # What really was, as recorded, and avg+avg.
    assert sorted(found) == [RECORDED, 0, 1]
    for columns in found.values():
        assert list(columns["refused"]) == [""], columns["note"]
    assert list(found[RECORDED]["reproduced"]) == [True], found[RECORDED]["note"]


def test_windows_without_a_decision_are_ticks_alone(pulsar: FakePulsar, tmp_path: Path) -> None:
    for broker in pulsar.brokers:
        broker.load_report = {"cpu": {"usage": 100.0, "limit": 200.0}}
    options = ["--pulsar", pulsar.url, "--json", "--interval", "0.2", "--strategy", "threshold"]
    with attach_process(*options, "--history", str(tmp_path / "h")) as process:
        process.until("{", times=3)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    lines = list(lines_in(*finished(tmp_path / "h")))
    assert kinds(lines)["round"] == 1
    ticks = [one for one in lines if one["kind"] == "tick"]
    assert [one["tick"] for one in ticks] == list(range(1, len(ticks) + 1))
    assert len(ticks) >= 3
    assert all(len(one["taken"]["broker"]) == 3 for one in ticks)
