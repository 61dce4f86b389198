"""Which proposals become tasks at one instant, and what that changes in the orders."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from loadmanager.core.bundle_task import (
    Arbitration,
    AskedBy,
    BundleTask,
    LiveTasks,
    TaskEvent,
    TaskKind,
    task_of,
)
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.core.orders import OrderChanges, SplitOrder
from loadmanager.core.plan import Cause, Move
from loadmanager.core.splitting.merging import Merge

A, B = Boundaries.even(Namespace("t/n"), 2).bundles
B1, B2, B3 = (BrokerId(f"b{number}:8080") for number in (1, 2, 3))
CUT = SplitOrder("range_equally_divide")
BOTH = Merge(A, B)
THERE = {A: B1, B: B1}


def proposal(asked_by: AskedBy = AskedBy.BALANCING, **changes: Any) -> BundleTask:
    """Return a proposal to move A from b1 to b2, decided while both bundles were at b1."""
    usual = task_of(Move(A, B1, B2, Cause.IMBALANCE), asked_by, planned=THERE)
    return replace(usual, **changes)


def merge(target: BrokerId = B1) -> BundleTask:
    return proposal(
        AskedBy.PEOPLE,
        kind=TaskKind.MERGE,
        bundles=BOTH.halves,
        target=target,
        splits=BOTH.orders(),
    )


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
    tasks.advance(tasks.admit(wanted, 1.0), TaskEvent.ORDER_WRITTEN, 1.0)
    return tasks


def test_what_nothing_hinders_becomes_a_task_and_an_order() -> None:
    now = instant()
    admitted = now.admit([proposal(), proposal(bundles=(B,), target=B3)])
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
    admitted = now.admit([proposal(), proposal(bundles=(B,))])
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
    both = [proposal(AskedBy.PEOPLE, bundles=(B,), target=B3), split()]
    for wanted in (both[1 - last], both[last]):
        assert len(now.admit([wanted]).tasks) == 1
    assert now.changes == OrderChanges({A: B1, B: B3}, {A: CUT, B: None})


def test_the_budget_of_a_broker_counts_what_is_admitted_at_the_same_instant() -> None:
    now = instant(most_per_broker=1)
    admitted = now.admit([proposal(AskedBy.DRAIN), proposal(AskedBy.DRAIN, bundles=(B,))])
    assert [task.bundle for task in admitted.tasks] == [A]
    assert admitted.refused == {B: f"1 tasks to and from {B1} are under way"}
    assert len(now.admit([proposal(AskedBy.UNOWNED, bundles=(B,))]).tasks) == 1
