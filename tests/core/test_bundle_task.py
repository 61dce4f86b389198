"""One bundle task: each event in each state, and what a task says of itself."""

from dataclasses import replace
from typing import Any

import pytest

from loadmanager.core.bundle_task import (
    TRANSITIONS,
    AskedBy,
    BundleTask,
    IllegalTaskEvent,
    TaskEvent,
    TaskKind,
    TaskState,
    advanced,
)
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Cause

A = BundleId("t/n/0x00000000_0x80000000")
B1, B2 = BrokerId("b1:8080"), BrokerId("b2:8080")
TASK = BundleTask(
    number=3,
    epoch=7,
    kind=TaskKind.MOVE,
    bundles=(A,),
    source=B1,
    target=B2,
    cause=Cause.OVERLOADED,
    asked_by=AskedBy.BALANCING,
    proposed_at_s=10.0,
)
RELEASED = TaskEvent.SOURCE_RELEASED


def after(task: BundleTask, *events: TaskEvent) -> BundleTask:
    """Return the task after these events, one a second from second 11 on."""
    for now_s, event in enumerate(events, start=11):
        task = advanced(task, event, float(now_s))
    return task


@pytest.mark.parametrize("event", TaskEvent)
@pytest.mark.parametrize("state", TaskState)
def test_each_event_leads_where_the_table_says_and_no_other_can_happen(
    state: TaskState, event: TaskEvent
) -> None:
    task = replace(TASK, state=state)
    following = TRANSITIONS.get((state, event))
    if following is None:
        with pytest.raises(IllegalTaskEvent) as refused:
            advanced(task, event, 11.0)
        assert str(refused.value) == (
            f"task 3 (move of {A}): {event.value} cannot happen in state {state.value}"
        )
        assert (refused.value.task, refused.value.event) == (task, event)
    else:
        changed = advanced(task, event, 11.0, "why")
        assert (changed.state, changed.last_event, changed.note) == (following, event, "why")
        assert changed.ended_at_s == (11.0 if following.ended else None)


def test_nothing_happens_to_a_task_that_has_ended_and_each_other_one_can_end() -> None:
    live = {state for state, _ in TRANSITIONS}
    assert live == {state for state in TaskState if not state.ended}
    for state in live:
        reached = {state}
        while more := {TRANSITIONS[s, e] for s, e in TRANSITIONS if s in reached} - reached:
            reached |= more
        assert any(one.ended for one in reached)
    assert set(TRANSITIONS.values()) == set(TaskState) - {TaskState.PROPOSED}
    assert {event for _, event in TRANSITIONS} == set(TaskEvent)


def test_a_move_notes_when_it_came_where_and_how_often_it_was_ordered() -> None:
    repeated = TaskEvent.REPEATED
    done = after(TASK, TaskEvent.ORDER_WRITTEN, repeated, RELEASED, repeated, TaskEvent.DONE)
    assert (done.ordered_at_s, done.released_at_s, done.ended_at_s) == (11.0, 13.0, 15.0)
    assert (done.attempts, done.attempted_at_s) == (3, 14.0)
    assert done.pause_s == 2.0


def test_an_order_whose_reply_was_lost_counts_from_when_it_was_seen_to_stand() -> None:
    task = after(TASK, TaskEvent.REPLY_LOST, TaskEvent.ORDER_WRITTEN)
    assert (task.ordered_at_s, task.attempts) == (12.0, 1)


def test_the_reason_that_was_given_first_stays_until_there_is_another() -> None:
    lost = advanced(TASK, TaskEvent.REPLY_LOST, 11.0, "the reply was lost")
    assert advanced(lost, TaskEvent.ORDER_WRITTEN, 12.0).note == "the reply was lost"
    assert advanced(lost, TaskEvent.ORDER_REFUSED, 12.0, "it does not stand").note == (
        "it does not stand"
    )


@pytest.mark.parametrize(
    ("events", "changes", "pause_s"),
    [
        pytest.param((RELEASED,), {}, None, id="under way"),
        pytest.param((RELEASED, TaskEvent.GAVE_UP), {}, None, id="failed"),
        pytest.param((TaskEvent.DONE,), {}, None, id="the source was not seen to release it"),
        pytest.param(
            (TaskEvent.DONE,), {"kind": TaskKind.PLACE, "source": None}, 1.0, id="no owner before"
        ),
    ],
)
def test_how_long_a_bundle_had_no_owner_is_known_of_complete_moves_alone(
    events: tuple[TaskEvent, ...], changes: dict[str, Any], pause_s: float | None
) -> None:
    assert after(replace(TASK, **changes), TaskEvent.ORDER_WRITTEN, *events).pause_s == pause_s


@pytest.mark.parametrize(
    ("kind", "source", "parties"),
    [
        (TaskKind.MOVE, B1, (B1, B2)),
        (TaskKind.MOVE, B2, (B2,)),
        (TaskKind.PLACE, None, (B2,)),
        (TaskKind.SPLIT, B1, (B1, B2)),
        (TaskKind.SPLIT, B2, ()),
        (TaskKind.MERGE, None, ()),
    ],
)
def test_a_bundle_is_under_way_between_its_source_and_its_target(
    kind: TaskKind, source: BrokerId | None, parties: tuple[BrokerId, ...]
) -> None:
    task = replace(TASK, kind=kind, source=source)
    assert task.parties == parties
    assert task.relocates is (kind in {TaskKind.MOVE, TaskKind.PLACE})
