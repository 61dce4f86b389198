"""A bundle task from event to event, and the live tasks of a leader."""

from dataclasses import replace
from typing import Any

import pytest

from loadmanager.core.bundle_task import (
    TRANSITIONS,
    AskedBy,
    BundleTask,
    IllegalTaskEvent,
    LiveTasks,
    TaskEvent,
    TaskKind,
    TaskState,
    advanced,
    task_of,
)
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.orders import SplitOrder
from loadmanager.core.plan import Cause, Move

A, B = BundleId("t/n/0x00000000_0x80000000"), BundleId("t/n/0x80000000_0xffffffff")
B1, B2, B3 = (BrokerId(f"b{number}:8080") for number in (1, 2, 3))


def proposal(
    asked_by: AskedBy = AskedBy.BALANCING, *bundles: BundleId, **changes: Any
) -> BundleTask:
    """Return a proposal to move A, or other bundles, from b1 to b2."""
    usual = task_of(Move(A, B1, B2, Cause.IMBALANCE), asked_by)
    return replace(usual, bundles=bundles or (A,), **changes)


def ordered(tasks: LiveTasks, wanted: BundleTask, event: TaskEvent | None = None) -> BundleTask:
    """Return the task of a proposal whose order was written, or whatever ``event`` says."""
    task = tasks.admit(wanted, 1.0)
    return tasks.advance(task, event or TaskEvent.ORDER_WRITTEN, 1.0)[-1]


def test_a_task_is_live_from_its_order_to_its_end() -> None:
    tasks = LiveTasks(7)
    task = ordered(tasks, proposal())
    assert (task.number, task.epoch) == (1, 7)
    assert (tasks.of(A), tasks.of(B), len(tasks), list(tasks)) == (task, None, 1, [task])
    assert (tasks.number_of(A), tasks.number_of(B)) == (1, 0)
    (released,) = tasks.advance(task, TaskEvent.SOURCE_RELEASED, 2.0)
    assert (tasks.of(A), tasks.under_way(B1), tasks.under_way(B2)) == (released, 1, 1)
    (done,) = tasks.advance(released, TaskEvent.DONE, 3.0, "there")
    assert (done.state, done.note, tasks.of(A), len(tasks)) == (TaskState.SERVING, "there", None, 0)
    assert (tasks.under_way(B1), tasks.under_way(B2)) == (0, 0)


def test_a_proposal_that_is_refused_was_never_live() -> None:
    tasks = LiveTasks(7)
    (task,) = tasks.advance(tasks.admit(proposal(), 1.0), TaskEvent.ORDER_REFUSED, 1.0, "full")
    assert (task.state, task.note) == (TaskState.FAILED, "full")
    assert len(tasks) == tasks.under_way(B2) == 0


def test_a_merge_is_one_task_of_two_bundles() -> None:
    tasks = LiveTasks(7)
    merge = ordered(tasks, proposal(AskedBy.PEOPLE, A, B, kind=TaskKind.MERGE))
    assert (list(tasks), len(tasks), tasks.of(A), tasks.of(B)) == ([merge], 2, merge, merge)
    tasks.advance(merge, TaskEvent.DONE, 2.0)
    assert (list(tasks), len(tasks)) == ([], 0)


def test_a_new_task_of_a_bundle_replaces_the_former_ones() -> None:
    tasks = LiveTasks(7)
    one, other = ordered(tasks, proposal()), ordered(tasks, proposal(AskedBy.BALANCING, B))
    task = tasks.admit(proposal(AskedBy.PEOPLE, A, B, kind=TaskKind.MERGE), 2.0)
    *replaced, merge = tasks.advance(task, TaskEvent.ORDER_WRITTEN, 2.0)
    assert [(gone.number, gone.state, gone.note) for gone in replaced] == [
        (one.number, TaskState.SUPERSEDED, f"task {merge.number} took its place"),
        (other.number, TaskState.SUPERSEDED, f"task {merge.number} took its place"),
    ]
    assert list(tasks) == [merge]


RIGHT: dict[AskedBy, set[AskedBy]] = {
    AskedBy.UNOWNED: set(AskedBy),
    AskedBy.PEOPLE: set(AskedBy),
    AskedBy.DRAIN: {AskedBy.DRAIN, AskedBy.RECONCILIATION, AskedBy.BALANCING},
    AskedBy.RECONCILIATION: {AskedBy.RECONCILIATION, AskedBy.BALANCING},
    AskedBy.BALANCING: set(),
}
"""Whose live tasks give way to a proposal of each."""


@pytest.mark.parametrize("asking", AskedBy)
@pytest.mark.parametrize("former", AskedBy)
def test_a_task_gives_way_to_the_same_or_more_right(asking: AskedBy, former: AskedBy) -> None:
    tasks = LiveTasks(7)
    task = ordered(tasks, proposal(former))
    why = tasks.obstacle(proposal(asking, target=B3), 9, {})
    expected = None if former in RIGHT[asking] else f"move at {B2} is under way (task 1)"
    assert (tasks.of(A), why) == (task, expected)


@pytest.mark.parametrize("asking", AskedBy)
def test_an_order_that_may_stand_gives_way_to_nothing(asking: AskedBy) -> None:
    tasks = LiveTasks(7)
    ordered(tasks, proposal(), TaskEvent.REPLY_LOST)
    assert tasks.obstacle(proposal(asking, target=B3), 9, {}) is not None
    assert tasks.obstacle(proposal(asking, B), 9, {}) is None


@pytest.mark.parametrize("asking", AskedBy)
def test_drains_and_rounds_alone_keep_to_the_budget_of_each_broker(asking: AskedBy) -> None:
    tasks = LiveTasks(7)
    ordered(tasks, proposal(AskedBy.PEOPLE))
    bounded = asking in {AskedBy.DRAIN, AskedBy.BALANCING}
    for source, target, full in ((B3, B2, B2), (B1, B3, B1)):
        why = tasks.obstacle(proposal(asking, B, source=source, target=target), 1, {})
        assert why == (f"1 tasks to and from {full} are under way" if bounded else None)
    assert tasks.obstacle(proposal(asking, B, source=B1, target=B3), 2, {}) is None
    assert tasks.obstacle(proposal(asking, B, source=None, target=B3), 1, {}) is None


def test_what_is_about_to_be_ordered_counts_and_what_is_replaced_does_not() -> None:
    tasks = LiveTasks(7)
    ordered(tasks, proposal(AskedBy.DRAIN))
    again = proposal(AskedBy.DRAIN, target=B3)
    assert tasks.obstacle(again, 1, {}) is None
    assert tasks.obstacle(again, 1, {B3: 1}) == f"1 tasks to and from {B3} are under way"


def test_a_split_carries_no_bundle_to_or_from_its_broker() -> None:
    tasks = LiveTasks(7)
    ordered(tasks, proposal())
    split = proposal(
        AskedBy.BALANCING,
        B,
        kind=TaskKind.SPLIT,
        source=B2,
        target=B2,
        splits={B: SplitOrder("range_equally_divide")},
    )
    assert tasks.obstacle(split, 1, {}) is None
    assert tasks.obstacle(replace(split, source=B1), 1, {}) is not None
    back = replace(split, kind=TaskKind.MOVE, splits={})
    assert tasks.obstacle(back, 1, {}) is not None


def test_what_does_not_follow_a_proposal_changes_nothing() -> None:
    tasks = LiveTasks(7)
    former = ordered(tasks, proposal())
    with pytest.raises(IllegalTaskEvent):
        tasks.advance(tasks.admit(proposal(), 2.0), TaskEvent.DONE, 2.0)
    with pytest.raises(IllegalTaskEvent):
        tasks.advance(former, TaskEvent.ORDER_WRITTEN, 2.0)
    assert list(tasks) == [former]


def test_only_the_live_task_of_its_bundles_can_be_advanced() -> None:
    tasks = LiveTasks(7)
    former = ordered(tasks, proposal())
    tasks.advance(former, TaskEvent.SOURCE_RELEASED, 2.0)
    with pytest.raises(match="task 1 is not the live task of"):
        tasks.advance(former, TaskEvent.DONE, 3.0)


def test_a_task_that_cannot_be_followed_is_dropped_and_not_counted() -> None:
    tasks = LiveTasks(7)
    task = ordered(tasks, proposal())
    other = ordered(tasks, proposal(AskedBy.PEOPLE, B))
    tasks.drop(task)
    assert (tasks.of(A), tasks.of(B), tasks.under_way(B1)) == (None, other, 1)


TASK = proposal(number=3, epoch=7, cause=Cause.OVERLOADED, proposed_at_s=10.0)

RELEASED = TaskEvent.SOURCE_RELEASED


def after(task: BundleTask, *events: TaskEvent) -> BundleTask:
    """Return the task after these events, one a second from second 11 on."""
    for now_s, event in enumerate(events, start=11):
        task = advanced(task, event, float(now_s))
    return task


@pytest.mark.parametrize("event", TaskEvent)
@pytest.mark.parametrize("state", TaskState)
def test_each_event_leads_where_the_table_says(state: TaskState, event: TaskEvent) -> None:
    task = replace(TASK, state=state)
    following = TRANSITIONS.get((state, event))
    if following is None:
        with pytest.raises(IllegalTaskEvent) as refused:
            advanced(task, event, 11.0)
        assert str(refused.value) == (
            f"task 3 (move of {A}): {event.value} cannot happen in state {state.value}"
        )
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
        pytest.param((TaskEvent.DONE,), {"kind": TaskKind.PLACE, "source": None}, 1.0, id="placed"),
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
