"""Which recorded moves count as carried out: by tasks where there are lines of them."""

from typing import Any

import pytest
from replayed import events, live, replayed

from loadmanager.core.plan import Cause
from loadmanager.pipeline.replay.events import Event
from loadmanager.pipeline.replay.frames import CarriedOut, CarriedOutMoves

A, B = "t/n/0x00000000_0x80000000", "t/n/0x80000000_0xffffffff"


def move(bundle: str = A, *, epoch: int = 3, outcome: str = "moved") -> dict[str, Any]:
    ends = {"source": "b1:8080", "target": "b2:8080", "cause": "overloaded"}
    return {"epoch": epoch, "round": 1, "bundle": bundle, "outcome": outcome, **ends}


def task(state: str, bundle: str = A, **other: Any) -> dict[str, Any]:
    return {
        "epoch": 3,
        "task": 1,
        "action": "move",
        "bundles": [bundle],
        "source": "b1:8080",
        "target": "b2:8080",
        "cause": "overloaded",
        "asked_by": "balancing",
        "state": state,
    } | other


def carried_out(bundle: str = A) -> CarriedOut:
    return CarriedOut(bundle, "b1:8080", "b2:8080", Cause.OVERLOADED)


ONE = (carried_out(),)
BOTH = (carried_out(), carried_out(B))
SPLIT = {"cause": "oversized"}


@pytest.mark.parametrize(
    ("lines", "counted"),
    [
        pytest.param(
            [move(), move(B, outcome="placed"), move(outcome="failed"), move(outcome="observed")],
            BOTH,
            id="without tasks each that was ordered",
        ),
        *(
            pytest.param([task("ordered"), move(), task(state)], (), id=state)
            for state in ("failed", "superseded", "timed_out", "landed_elsewhere")
        ),
        pytest.param(
            [task("ordered"), move(), task("released"), task("serving")],
            ONE,
            id="once, when its target serves",
        ),
        pytest.param(
            [task("unconfirmed"), move(outcome="failed"), task("ordered"), task("serving")],
            ONE,
            id="a move whose reply was lost",
        ),
        pytest.param(
            [task("serving", asked_by="reconciliation", cause="inherited")],
            (),
            id="an order of a former leader",
        ),
        pytest.param([task("serving", action="split", **SPLIT)], (), id="a split"),
        pytest.param([task("serving", action="merge", **SPLIT)], (), id="a merge"),
        pytest.param(
            [move(B, epoch=2), task("ordered"), move(), task("serving")],
            BOTH,
            id="a former term without tasks",
        ),
    ],
)
def test_moves_count_as_carried_out(
    lines: list[dict[str, Any]], counted: tuple[CarriedOut, ...]
) -> None:
    found = CarriedOutMoves()
    for line in lines:
        (found.task if "task" in line else found.move)(line)
    assert found.taken() == counted


def test_a_term_keeps_its_tasks_from_round_to_round() -> None:
    found = CarriedOutMoves()
    found.task(task("ordered"))
    found.move(move())
    assert found.taken() == ()
    found.move(move(B))
    found.task(task("serving"))
    assert found.taken() == (carried_out(),)
    assert found.taken() == ()


def test_a_live_history_has_the_same_moves_by_its_tasks_as_without_them() -> None:
    found = events(live())
    assert any(one.kind == "task" for one in found)
    old = [one for one in found if one.kind != "task"]
    by_tasks, by_moves = replayed(found, [])[-1], replayed(old, [])[-1]
    assert 0 < by_tasks["moves"].sum() <= by_moves["moves"].sum()
    last = [one for one in found if one.kind == "task" and one.body["state"] == "serving"][-1]
    cut = [one for one in found if one is not last]
    ended = Event("task", {**last.body, "state": "superseded"})
    spoilt = [*cut[: found.index(last)], ended, *cut[found.index(last) :]]
    fewer = replayed(spoilt, [])[-1]
    assert fewer["moves"].sum() == by_tasks["moves"].sum() - 1
