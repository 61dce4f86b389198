"""Which recorded moves count as carried out: by tasks where there are lines of them."""

from typing import Any

import pytest
from replayed import events, live, replayed

from loadmanager.core.plan import Cause
from loadmanager.pipeline.replay.carried_out import CarriedOut, CarriedOutMoves
from loadmanager.pipeline.replay.events import Event

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


def collected(*lines: dict[str, Any]) -> tuple[CarriedOut, ...]:
    found = CarriedOutMoves()
    for line in lines:
        (found.task if "task" in line else found.move)(line)
    return found.taken()


def carried_out(bundle: str = A) -> CarriedOut:
    return CarriedOut(bundle, "b1:8080", "b2:8080", Cause.OVERLOADED)


def test_without_tasks_each_move_that_was_ordered_counts() -> None:
    lines = (move(), move(B, outcome="placed"), move(outcome="failed"), move(outcome="observed"))
    assert collected(*lines) == (carried_out(), carried_out(B))


@pytest.mark.parametrize("state", ["failed", "superseded", "timed_out", "landed_elsewhere"])
def test_an_order_that_came_to_nothing_is_no_move(state: str) -> None:
    assert collected(task("ordered"), move(), task(state)) == ()


def test_a_task_is_carried_out_once_when_its_target_serves() -> None:
    lines = (task("ordered"), move(), task("released"), task("serving"))
    assert collected(*lines) == (carried_out(),)


def test_a_move_whose_reply_was_lost_counts_once_it_is_seen_to_have_happened() -> None:
    lines = (task("unconfirmed"), move(outcome="failed"), task("ordered"), task("serving"))
    assert collected(*lines) == (carried_out(),)


def test_what_follows_up_orders_of_a_former_leader_is_no_decision_of_this_one() -> None:
    assert collected(task("serving", asked_by="reconciliation", cause="inherited")) == ()


@pytest.mark.parametrize("action", ["split", "merge"])
def test_a_split_or_merge_is_no_move(action: str) -> None:
    assert collected(task("serving", action=action, cause="oversized")) == ()


def test_moves_of_a_former_term_without_tasks_count_beside_tasks_of_the_next() -> None:
    lines = (move(B, epoch=2), task("ordered"), move(), task("serving"))
    assert collected(*lines) == (carried_out(), carried_out(B))


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
