"""One recorded history gives the same decisions, round by round, wherever it is decided again."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from click.testing import CliRunner
from history_sinks import Archive, KeptHistory
from replayed import events, frames, live, simulated, told
from snapshot_of_history import report_of, snapshot_of

from loadmanager.admin.decisions import PlanQuery, _previewed
from loadmanager.cli import main
from loadmanager.config.strategies import Wanted, planner_for
from loadmanager.core.balancing import Balancing
from loadmanager.core.ids import BrokerId
from loadmanager.core.planner import Planner
from loadmanager.core.shadow import Seen, Shadow, after_round
from loadmanager.core.snapshot.codec import encode_snapshot
from loadmanager.core.snapshot.document import Snapshot, tracker_of, view_of_snapshot
from loadmanager.leader.decisions import Observation, decide_round
from loadmanager.leader.records import ViewInput
from loadmanager.pipeline.replay.frames import Frame
from loadmanager.pipeline.replay.replay_run import Planners, ReplayRun, Rules, TrafficCosts

TRANSFER: Final = "transfer+least_resource_usage_with_weight"
Moves = list[tuple[str, str | None, str]]


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def leader(snapshot: Snapshot, planner: Planner, _tmp: Path) -> Moves:
    ago_s = snapshot.membership_changed_ago_s
    tally = replace(
        tracker_of(snapshot, planner.weights).tally(),
        membership_changed_s=float("-inf") if ago_s is None else snapshot.now_s - ago_s,
        departures_s=tuple(snapshot.now_s - left_s for left_s in snapshot.departed_ago_s),
    )
    seen = ViewInput(
        now_s=snapshot.now_s,
        tally=tally,
        assigned=snapshot.in_flight,
        policies=snapshot.policies,
        excluded=frozenset(),
    )
    decided = decide_round(planner, seen, snapshot.memory, rng(), session_doubtful=False)
    return [(one.bundle, one.source, one.target) for one in decided.moves]


def preview(snapshot: Snapshot, planner: Planner, _tmp: Path) -> Moves:
    look = Observation(
        epoch=1,
        view=view_of_snapshot(snapshot, planner.weights),
        averages={},
        memory=snapshot.memory,
        planner=planner,
        balancing=Balancing(),
        unowned=(),
    )
    plan = _previewed(planner, look, PlanQuery(seed=1))
    return [(one.bundle, one.source, one.target) for one in plan.moves]


def decide(snapshot: Snapshot, _planner: Planner, tmp: Path) -> Moves:
    (tmp / "snapshot.json").write_bytes(encode_snapshot(snapshot))
    asked = ["decide", "--snapshot", str(tmp / "snapshot.json"), "--json", "--seed", "1"]
    found = CliRunner().invoke(main, asked)
    assert found.exit_code == 0, found.output
    (one,) = json.loads(found.stdout)["rounds"]
    return [(move["bundle"], move["source"], move["target"]) for move in one["moves"]]


def shadow(snapshot: Snapshot, planner: Planner, _tmp: Path) -> Moves:
    view = view_of_snapshot(snapshot, planner.weights)
    divided = planner.divided(view, snapshot.memory)
    optimality = planner.optimality(view, snapshot.memory)
    assert divided is not None
    assert optimality is not None
    seen = Seen(view=view, divided=divided, optimality=optimality, moves=())
    after = after_round(Shadow(memory=snapshot.memory), planner, seen, rng())
    return [(bundle, view.listed_owner(bundle), to) for bundle, to in after.away.items()]


def replay(frame: Frame) -> Moves:
    """Return the decision of a replay that begins at this round."""
    planners = Planners()
    run = ReplayRun(number=0, planners=planners, rules=Rules(), measured=planners, rng=rng())
    run.step(replace(frame, begins=True), TrafficCosts(frame))
    names, brokers = frame.bundles.names, frame.all_brokers.names
    ordered = [(names[row], brokers[one.target]) for row, one in run._orders.items()]
    owner = dict(zip(names, frame.owner.tolist(), strict=False))
    return [
        (bundle, frame.brokers.names[owner[bundle]], to)
        for bundle, to in ordered
        if bundle not in frame.moved
    ]


def snapshots(history: Archive | KeptHistory) -> Iterator[tuple[Snapshot, Moves]]:
    """Yield the snapshot of each base round, and the moves that were decided on it."""
    reports, lines = told(history)
    known = {(BrokerId(name), at): report_of(line) for (name, at), line in reports.items()}
    for one in lines:
        if one["kind"] == "round" and one["base"]:
            of = [line for line in lines if line.get("round") == one["round"]]
            bundles = [line for line in of if line["kind"] == "bundles"]
            moves = [
                (line["bundle"], line["source"], line["target"])
                for line in of
                if line["kind"] == "move"
            ]
            yield snapshot_of(one, bundles, known), moves


HISTORIES: Mapping[str, Callable[[], Archive | KeptHistory]] = {
    "sidecars": live,
    "joint+joint": lambda: simulated("joint+joint", base_every_rounds=1),
    TRANSFER: lambda: simulated(TRANSFER, base_every_rounds=1),
    "overload+avg": lambda: simulated("overload+avg", base_every_rounds=1),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_one_history_is_decided_alike_everywhere(name: str, tmp_path: Path) -> None:
    history = HISTORIES[name]()
    found = list(snapshots(history))
    decided = 0
    for (snapshot, recorded), frame in zip(found, frames(events(history)), strict=True):
        assert isinstance(frame, Frame)
        planner = planner_for(name, snapshot.in_force, Wanted())
        want = leader(snapshot, planner, tmp_path)
        for again in (preview, decide, shadow):
            assert again(snapshot, planner, tmp_path) == want, (again.__name__, frame.number)
        assert replay(frame) == want, frame.number
        if name != "joint+joint":  # What it learned is not in history.
            assert want == recorded, frame.number
        decided += len(want)
    assert decided > 0 or name == "overload+avg"
