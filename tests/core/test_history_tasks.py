"""What history tells of bundle tasks: a line for each state, and one for a hand-over's end."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from loadmanager.core.bundle_task import (
    AskedBy,
    BundleTask,
    TaskEvent,
    TaskKind,
    advanced,
)
from loadmanager.core.history.records import task_records
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.orders import SplitOrder
from loadmanager.core.plan import Cause

X = BundleId("t/n/0x00000000_0x80000000")
B1, B2 = BrokerId("b1:8080"), BrokerId("b2:8080")
NOON_MS = 1_795_262_400_000
CUT = SplitOrder("range_equally_divide")
WRITTEN, RELEASED, DONE = TaskEvent.ORDER_WRITTEN, TaskEvent.SOURCE_RELEASED, TaskEvent.DONE

Events = Mapping[float, TaskEvent]


def task(events: Events, **changes: Any) -> BundleTask:
    """Return a task that was proposed at second 0, after what happened at which second."""
    proposal = BundleTask(
        kind=TaskKind.MOVE,
        bundles=(X,),
        source=B1,
        target=B2,
        cause=Cause.OVERLOADED,
        asked_by=AskedBy.BALANCING,
    )
    one = replace(proposal, number=4, epoch=7, **changes)
    for at_s, event in events.items():
        one = advanced(one, event, at_s)
    return one


def lines(one: BundleTask, now_s: float) -> list[tuple[str, Mapping[str, Any]]]:
    at_ms = NOON_MS + round(1000 * now_s)
    return [(record.kind, record.body) for record in task_records(at_ms, one, now_s)]


def hand_overs(one: BundleTask, now_s: float) -> list[Mapping[str, Any]]:
    return [body for kind, body in lines(one, now_s) if kind == "hand_over"]


def test_each_state_of_a_task_is_a_line() -> None:
    one = task({0.25: WRITTEN, 0.5: TaskEvent.REPEATED, 1.0: RELEASED})
    of_task = {"epoch": 7, "task": 4, "action": "move", "bundles": [X], "source": B1, "target": B2}
    why = {"cause": "overloaded", "asked_by": "balancing", "note": ""}
    state = {"state": "released", "age_s": 1.0, "attempts": 2}
    assert lines(one, 1.0) == [("task", of_task | why | state)]


def test_clients_wait_from_the_source_s_end_until_the_target_serves() -> None:
    one = task({0.25: WRITTEN, 1.0: RELEASED, 1.75: DONE})
    of_move = {"epoch": 7, "bundle": X, "source": B1, "target": B2, "outcome": "finished"}
    times = {"ordered_at_ms": 250, "released_at_ms": 1000, "acquired_at_ms": 1750}
    waits = {"took_s": 1.5, "pause_s": 0.75}
    at_ms = {name: NOON_MS + after_ms for name, after_ms in times.items()}
    assert hand_overs(one, 2.0) == [of_move | at_ms | waits]


def test_the_clients_of_a_bundle_without_an_owner_wait_since_its_order() -> None:
    one = task({0.5: WRITTEN, 2.5: DONE}, kind=TaskKind.PLACE, source=None)
    (ended,) = hand_overs(one, 2.5)
    assert (ended["source"], ended["released_at_ms"], ended["pause_s"]) == (None, None, 2.0)
    assert (ended["outcome"], ended["took_s"]) == ("finished", 2.0)


def test_an_order_that_is_repeated_is_one_hand_over() -> None:
    one = task({0.0: WRITTEN, 5.0: TaskEvent.REPEATED, 6.0: DONE})
    assert [ended["took_s"] for ended in hand_overs(one, 6.0)] == [6.0]


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (TaskEvent.REPLACED, "replaced"),
        (TaskEvent.GAVE_UP, "replaced"),
        (TaskEvent.EXPIRED, "replaced"),
        (TaskEvent.SERVED_ELSEWHERE, "replaced"),
        (TaskEvent.TERM_ENDED, "left"),
    ],
)
@pytest.mark.parametrize("released", [False, True])
def test_an_order_that_did_not_bring_the_bundle_there_says_what_became_of_it(
    event: TaskEvent, outcome: str, *, released: bool
) -> None:
    one = task({0.0: WRITTEN, **({1.0: RELEASED} if released else {}), 2.0: event})
    (ended,) = hand_overs(one, 2.0)
    assert (ended["outcome"], ended["epoch"]) == (outcome, 7)
    assert ended["released_at_ms"] == (NOON_MS + 1000 if released else None)
    assert (ended["acquired_at_ms"], ended["took_s"], ended["pause_s"]) == (None, None, None)


@pytest.mark.parametrize(
    ("events", "changes"),
    [
        pytest.param({1.0: WRITTEN}, {}, id="not ended"),
        pytest.param(
            {1.0: TaskEvent.REPLY_LOST, 2.0: TaskEvent.TERM_ENDED}, {}, id="perhaps not ordered"
        ),
        pytest.param({1.0: TaskEvent.ORDER_REFUSED}, {}, id="never ordered"),
        pytest.param({1.0: WRITTEN, 2.0: DONE}, {"source": B2}, id="there already"),
        pytest.param(
            {1.0: WRITTEN, 2.0: DONE}, {"asked_by": AskedBy.RECONCILIATION}, id="another leader's"
        ),
        pytest.param(
            {1.0: WRITTEN, 2.0: DONE}, {"kind": TaskKind.SPLIT, "splits": {X: CUT}}, id="a split"
        ),
    ],
)
def test_only_orders_of_this_term_that_move_a_bundle_and_ended_are_hand_overs(
    events: Events, changes: Mapping[str, Any]
) -> None:
    assert [kind for kind, _ in lines(task(events, **changes), 2.0)] == ["task"]
