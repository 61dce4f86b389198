"""A bundle task from event to event, a leader's live tasks, and which proposals become some."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from loadmanager.core.bundle_task import (
    CUT_WITHIN_S,
    TRANSITIONS,
    Arbitration,
    AskedBy,
    BundleTask,
    IllegalTaskEvent,
    LiveTasks,
    TaskEvent,
    TaskKind,
    TaskState,
    advanced,
    ended_by,
    overdue,
    seen,
    stands,
    task_of,
    unfollowed,
)
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.orders import OrderChanges, SplitOrder
from loadmanager.core.plan import Cause, Move
from loadmanager.core.splitting.merging import Merge

A, B, C, D = Boundaries.even(Namespace("t/n"), 4).bundles
B1, B2, B3 = (BrokerId(f"b{number}:8080") for number in (1, 2, 3))
CUT = SplitOrder("range_equally_divide")
BOTH = Merge(A, B)
THERE = {A: B1, B: B1}


def proposal(
    asked_by: AskedBy = AskedBy.BALANCING, *bundles: BundleId, **changes: Any
) -> BundleTask:
    """Return a proposal to move A, or other bundles, from b1 to b2, decided while b1 had both."""
    usual = task_of(Move(A, B1, B2, Cause.IMBALANCE), asked_by, planned=THERE)
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
        splits={B: CUT},
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


def merge(target: BrokerId = B1) -> BundleTask:
    merged: dict[str, Any] = {"kind": TaskKind.MERGE, "splits": BOTH.orders()}
    return proposal(AskedBy.PEOPLE, A, B, target=target, **merged)


def split(asked_by: AskedBy = AskedBy.PEOPLE, **changes: Any) -> BundleTask:
    return proposal(asked_by, kind=TaskKind.SPLIT, target=B1, splits={A: CUT}, **changes)


def instant(
    tasks: LiveTasks | None = None,
    assigned: Mapping[Any, BrokerId] = THERE,
    owners: Mapping[Any, BrokerId] = THERE,
    most_per_broker: int = 9,
) -> Arbitration:
    return Arbitration(
        tasks=tasks or LiveTasks(7),
        assigned=assigned,
        owner=owners.get,
        most_per_broker=most_per_broker,
        now_s=5.0,
    )


def live(wanted: BundleTask) -> LiveTasks:
    tasks = LiveTasks(7)
    ordered(tasks, wanted)
    return tasks


def test_what_nothing_hinders_becomes_a_task_and_an_order() -> None:
    now = instant()
    admitted = now.admit([proposal(), proposal(AskedBy.BALANCING, B, target=B3)])
    assert [(t.number, t.bundle, t.target) for t in admitted.tasks] == [(1, A, B2), (2, B, B3)]
    assert (admitted.ordered, admitted.refused) == ({}, {})
    assert now.changes == OrderChanges({A: B2, B: B3})
    assert len(now.tasks) == 0  # They are live once their orders are written.


def test_the_source_is_the_owner_of_now() -> None:
    (task,) = instant(owners={A: B3}).admit([proposal()]).tasks
    assert task.source == B3


@pytest.mark.parametrize(
    ("now", "wanted", "ordered", "changes"),
    [
        pytest.param(
            instant(live(proposal()), assigned={**THERE, A: B2}),
            proposal(planned={A: B2}),
            {A: B2},
            OrderChanges(),
            id="under way",
        ),
        pytest.param(instant(), proposal(target=B1), {A: B1}, OrderChanges(), id="served there"),
        pytest.param(
            instant(),
            proposal(AskedBy.PEOPLE, target=B1),
            {A: B1},
            OrderChanges({A: B1}),
            id="asked for by people: written again",
        ),
        pytest.param(
            instant(live(split())), split(AskedBy.BALANCING), {A: B1}, OrderChanges(), id="a split"
        ),
    ],
)
def test_what_stands_is_not_ordered_twice(
    now: Arbitration, wanted: BundleTask, ordered: dict[Any, BrokerId], changes: OrderChanges
) -> None:
    admitted = now.admit([wanted])
    assert (admitted.tasks, admitted.ordered, now.changes) == ([], ordered, changes)


@pytest.mark.parametrize(
    ("assigned", "owners"), [({A: B2}, {A: B1}), ({A: B1}, {A: B2}), ({}, {A: B1}), ({A: B1}, {})]
)
def test_what_is_not_both_ordered_and_served_there_is_to_be_ordered(
    assigned: Mapping[Any, BrokerId], owners: Mapping[Any, BrokerId]
) -> None:
    now = instant(assigned=assigned, owners=owners)
    assert len(now.admit([proposal(target=B1, planned=assigned)]).tasks) == 1


def test_of_two_proposals_for_one_bundle_the_first_is_ordered() -> None:
    now = instant()
    now.admit([proposal(AskedBy.PEOPLE, target=B3)])
    admitted = now.admit([proposal(), proposal(AskedBy.BALANCING, B)])
    assert [task.bundle for task in admitted.tasks] == [B]
    assert admitted.refused == {A: "something with more right is ordered for it at the same moment"}
    assert now.changes == OrderChanges({A: B3, B: B2})


@pytest.mark.parametrize("asked_by", AskedBy)
def test_what_was_decided_on_other_orders_is_decided_anew_but_for_people(asked_by: AskedBy) -> None:
    admitted = instant(assigned={A: B3, B: B1}).admit([proposal(asked_by)])
    people = asked_by is AskedBy.PEOPLE
    assert len(admitted.tasks) == people
    assert admitted.refused == ({} if people else {A: f"it was ordered to {B3} meanwhile"})


@pytest.mark.parametrize("wanted", [proposal(AskedBy.PEOPLE), split(), proposal()])
def test_a_bundle_that_is_no_more_is_not_brought_back(wanted: BundleTask) -> None:
    assert instant(assigned={B: B1}).admit([wanted]).refused == {
        A: "it was split, merged or deleted meanwhile"
    }


def test_a_split_that_people_ask_for_is_not_carried_out_elsewhere() -> None:
    admitted = instant(assigned={A: B3}, owners={A: B3}).admit([split()])
    assert admitted.refused == {A: f"it was ordered to {B3} meanwhile"}


def test_what_a_live_task_hinders_is_refused() -> None:
    tasks = live(proposal(AskedBy.PEOPLE))
    now = instant(tasks, assigned={A: B2, B: B1})
    admitted = now.admit([proposal(AskedBy.DRAIN, target=B3, planned={A: B2})])
    assert admitted.refused == {A: f"move at {B2} is under way (task 1)"}
    assert not now.changes


def test_a_split_and_a_merge_are_ordered_with_their_bundles() -> None:
    cutting, merging = instant(), instant()
    assert len(cutting.admit([split()]).tasks) == len(merging.admit([merge(B2)]).tasks) == 1
    assert cutting.changes == OrderChanges({A: B1}, {A: CUT})
    assert merging.changes == OrderChanges({A: B2, B: B2}, BOTH.orders())


def test_a_split_that_stands_is_ordered_another_way() -> None:
    now = instant(live(split()))
    other = replace(split(), splits={A: SplitOrder("topic_count_equally_divide")})
    assert len(now.admit([other]).tasks) == 1
    assert now.changes.splits == other.splits


def test_a_bundle_that_is_moved_while_it_is_to_be_split_is_split_by_its_next_owner() -> None:
    now = instant(live(split(AskedBy.BALANCING)))
    (task,) = now.admit([proposal(AskedBy.DRAIN)]).tasks
    assert (task.kind, task.source, task.target, task.splits) == (TaskKind.SPLIT, B1, B2, {A: CUT})
    assert now.changes == OrderChanges({A: B2}, {A: CUT})


def test_a_half_that_is_moved_takes_the_whole_merge_back() -> None:
    now = instant(live(merge()))
    (task,) = now.admit([proposal(AskedBy.PEOPLE, target=B3)]).tasks
    assert (task.kind, task.splits) == (TaskKind.MOVE, {})
    assert now.changes == OrderChanges({A: B3}, {A: None, B: None})


@pytest.mark.parametrize("last", [0, 1])
def test_taking_a_merge_back_leaves_the_split_of_its_other_half(last: int) -> None:
    now = instant(live(merge()))
    both = [proposal(AskedBy.PEOPLE, B, target=B3), split()]
    for wanted in (both[1 - last], both[last]):
        assert len(now.admit([wanted]).tasks) == 1
    assert now.changes == OrderChanges({A: B1, B: B3}, {A: CUT, B: None})


def test_the_budget_of_a_broker_counts_what_is_admitted_at_the_same_instant() -> None:
    now = instant(most_per_broker=1)
    admitted = now.admit([proposal(AskedBy.DRAIN), proposal(AskedBy.DRAIN, B)])
    assert [task.bundle for task in admitted.tasks] == [A]
    assert admitted.refused == {B: f"1 tasks to and from {B1} are under way"}
    assert len(now.admit([proposal(AskedBy.UNOWNED, B)]).tasks) == 1


LEFT = Boundaries.even(Namespace("t/n"), 8).bundles[0]
NAMED = {"A": A, "B": B, "C": C, "D": D}


def task(state: TaskState = TaskState.ORDERED, **changes: Any) -> BundleTask:
    at_s: dict[str, Any] = dict.fromkeys(("proposed_at_s", "ordered_at_s", "attempted_at_s"), 1.0)
    return proposal(number=1, epoch=7, state=state, **{**at_s, **changes})


def merging() -> BundleTask:
    return replace(task(kind=TaskKind.MERGE, splits=BOTH.orders()), bundles=BOTH.halves)


def test_a_task_stands_if_all_its_bundles_and_cuts_are_ordered() -> None:
    there = {A: B2, B: B2}
    assert stands(task(), there, {})
    assert not stands(task(), {A: B1}, {})
    assert stands(merging(), there, BOTH.orders())
    assert not stands(merging(), {**there, B: B1}, BOTH.orders())
    assert not stands(merging(), there, {A: BOTH.orders()[A]})


@pytest.mark.parametrize(
    ("one", "assigned", "event"),
    [
        (task(), {A: B2}, None),
        (task(TaskState.UNCONFIRMED), {}, None),
        (task(), {A: B1}, TaskEvent.REPLACED),
        (task(), {}, TaskEvent.REPLACED),
        (merging(), {BOTH.whole: B2}, TaskEvent.DONE),
        (merging(), {}, TaskEvent.REPLACED),
        (merging(), {C: B2, BundleId("t/m/0x00000000_0xffffffff"): B2}, TaskEvent.REPLACED),
        (task(kind=TaskKind.SPLIT, splits={A: CUT}), {LEFT: B2}, TaskEvent.DONE),
        (merging(), {A: B2, B: B2}, TaskEvent.REPLACED),
        (merging(), {A: B2}, TaskEvent.REPLACED),
    ],
)
def test_a_task_ends_when_its_order_stands_no_more(
    one: BundleTask, assigned: dict[BundleId, BrokerId], event: TaskEvent | None
) -> None:
    assert ended_by(one, assigned, {}) is event


DONE = TaskEvent.DONE


@pytest.mark.parametrize(
    ("one", "owner", "serving", "events"),
    [
        (task(), B1, True, []),
        (task(), None, False, [RELEASED]),
        (task(), B3, True, [RELEASED]),
        (task(), B2, False, [RELEASED]),
        (task(), B2, True, [RELEASED, DONE]),
        (task(TaskState.RELEASED), None, False, []),
        (task(TaskState.RELEASED), B2, True, [DONE]),
        (task(source=None), None, False, []),
        (task(source=None), B2, True, [DONE]),
        (task(TaskState.UNCONFIRMED), B2, True, []),
        (merging(), B2, True, []),
    ],
)
def test_owners_show_how_far_a_move_is(
    one: BundleTask, owner: BrokerId | None, serving: bool, events: list[TaskEvent]
) -> None:
    assert list(seen(one, owner, serving=serving)) == events


@pytest.mark.parametrize(
    ("one", "owners", "now_s", "event"),
    [
        (task(attempted_at_s=5.0), {}, 7.0, TaskEvent.REPEATED),
        (task(attempted_at_s=5.0), {A: B1}, 7.0, TaskEvent.REPEATED),
        (task(attempted_at_s=5.0), {A: B2}, 7.0, None),
        (task(attempted_at_s=5.0), {}, 6.9, None),
        (task(attempted_at_s=5.0, target=B3), {}, 7.0, None),
        (task(TaskState.UNCONFIRMED, attempted_at_s=None), {}, 99.0, None),
        (merging(), {A: B2, B: B2}, CUT_WITHIN_S, None),
        (merging(), {A: B2, B: B1}, CUT_WITHIN_S, TaskEvent.REPEATED),
        (merging(), {A: B2, B: B2}, 1.1 + CUT_WITHIN_S, TaskEvent.EXPIRED),
        (merging(), {}, 1.1 + CUT_WITHIN_S, TaskEvent.EXPIRED),
    ],
)
def test_what_is_not_carried_out_for_two_seconds_is_repeated_until_it_expires(
    one: BundleTask, owners: dict[BundleId, BrokerId], now_s: float, event: TaskEvent | None
) -> None:
    assert overdue(one, owners.get, {B1, B2}, now_s, 2.0) is event


def missing(
    tasks: LiveTasks, owners: dict[BundleId, BrokerId | None], **splits: SplitOrder
) -> list[BundleTask]:
    """Return what has no task where all four bundles are ordered to b2, which owns the others."""
    orders = {named: splits[name] for name, named in NAMED.items() if name in splits}
    assigned = dict.fromkeys(NAMED.values(), B2)
    return list(unfollowed(tasks, {**assigned, **owners}.get, assigned, orders))


def test_what_is_in_flight_without_a_task_is_a_placement_or_a_move() -> None:
    placed, moved = missing(LiveTasks(7), {A: None, B: B1})
    found = [(o.kind, o.bundles, o.source, o.target, o.cause, o.asked_by) for o in (placed, moved)]
    assert found == [
        (TaskKind.PLACE, (A,), None, B2, Cause.UNOWNED, AskedBy.RECONCILIATION),
        (TaskKind.MOVE, (B,), B1, B2, Cause.INHERITED, AskedBy.RECONCILIATION),
    ]


def test_merges_halves_of_merges_and_splits_without_a_task_are_found() -> None:
    cuts = BOTH.orders()
    merged, split, half = missing(
        LiveTasks(7), {}, A=cuts[A], B=cuts[B], C=CUT, D=Merge(C, D).orders()[D]
    )
    assert (merged.kind, merged.bundles, merged.splits) == (TaskKind.MERGE, (A, B), cuts)
    assert (split.kind, split.bundles, split.splits) == (TaskKind.SPLIT, (C,), {C: CUT})
    assert (half.kind, half.bundles) == (TaskKind.MERGE, (D,))
    assert {one.target for one in (merged, split, half)} == {B2}


def test_halves_that_are_ordered_to_different_brokers_are_followed_each_by_itself() -> None:
    tasks, apart = LiveTasks(7), {A: B1, B: B2}
    found = list(unfollowed(tasks, apart.get, apart, BOTH.orders()))
    assert [(one.kind, one.bundles, one.target) for one in found] == [
        (TaskKind.MERGE, (A,), B1),
        (TaskKind.MERGE, (B,), B2),
    ]
    for one in found:
        (followed,) = tasks.advance(tasks.admit(one, 1.0), TaskEvent.ORDER_WRITTEN, 1.0)
        # So it grows old, and is taken back in time.
        assert stands(followed, apart, BOTH.orders())
    assert list(unfollowed(tasks, apart.get, apart, BOTH.orders())) == []


def test_what_is_made_a_task_meanwhile_is_not_told_twice() -> None:
    tasks, found = LiveTasks(7), []
    everywhere = dict.fromkeys((A, B), B2)
    for one in unfollowed(tasks, {A: B1, B: B2}.get, everywhere, {A: CUT, B: CUT}):
        found.append((one.kind, one.bundles))
        tasks.advance(tasks.admit(one, 1.0), TaskEvent.ORDER_WRITTEN, 1.0)
    assert found == [(TaskKind.MOVE, (A,)), (TaskKind.SPLIT, (B,))]
