"""What standing orders and owners say of tasks: how they go on or end, and which are missing."""

from typing import Any

import pytest

from loadmanager.core.bundle_task import (
    CUT_WITHIN_S,
    AskedBy,
    BundleTask,
    LiveTasks,
    TaskEvent,
    TaskKind,
    TaskState,
    ended_by,
    overdue,
    seen,
    stands,
    unfollowed,
)
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.orders import SplitOrder
from loadmanager.core.plan import Cause
from loadmanager.core.splitting.merging import Merge

A, B, C, D = Boundaries.even(Namespace("t/n"), 4).bundles
B1, B2, B3 = (BrokerId(f"b{number}:8080") for number in (1, 2, 3))
CUT = SplitOrder("range_equally_divide")
BOTH = Merge(A, B)
LEFT = Boundaries.even(Namespace("t/n"), 8).bundles[0]
NAMED = {"A": A, "B": B, "C": C, "D": D}


def task(state: TaskState = TaskState.ORDERED, **changes: Any) -> BundleTask:
    usual: dict[str, Any] = {
        "number": 1,
        "epoch": 7,
        "kind": TaskKind.MOVE,
        "bundles": (A,),
        "source": B1,
        "target": B2,
        "cause": Cause.IMBALANCE,
        "asked_by": AskedBy.BALANCING,
        "proposed_at_s": 1.0,
        "ordered_at_s": 1.0,
        "attempted_at_s": 1.0,
        "state": state,
    }
    return BundleTask(**{**usual, **changes})


def merge() -> BundleTask:
    return task(kind=TaskKind.MERGE, bundles=BOTH.halves, splits=BOTH.orders())


def test_a_task_stands_if_all_its_bundles_and_cuts_are_ordered() -> None:
    there = {A: B2, B: B2}
    assert stands(task(), there, {})
    assert not stands(task(), {A: B1}, {})
    assert stands(merge(), there, BOTH.orders())
    assert not stands(merge(), {**there, B: B1}, BOTH.orders())
    assert not stands(merge(), there, {A: BOTH.orders()[A]})


@pytest.mark.parametrize(
    ("one", "assigned", "event"),
    [
        (task(), {A: B2}, None),
        (task(TaskState.UNCONFIRMED), {}, None),
        (task(), {A: B1}, TaskEvent.REPLACED),
        (task(), {}, TaskEvent.REPLACED),
        (merge(), {BOTH.whole: B2}, TaskEvent.DONE),
        (merge(), {}, TaskEvent.REPLACED),
        (merge(), {C: B2, BundleId("t/m/0x00000000_0xffffffff"): B2}, TaskEvent.REPLACED),
        (task(kind=TaskKind.SPLIT, splits={A: CUT}), {LEFT: B2}, TaskEvent.DONE),
        (merge(), {A: B2, B: B2}, TaskEvent.REPLACED),
        (merge(), {A: B2}, TaskEvent.REPLACED),
    ],
)
def test_a_task_ends_when_its_order_stands_no_more(
    one: BundleTask, assigned: dict[BundleId, BrokerId], event: TaskEvent | None
) -> None:
    assert ended_by(one, assigned, {}) is event


RELEASED, DONE = TaskEvent.SOURCE_RELEASED, TaskEvent.DONE


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
        (merge(), B2, True, []),
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
        (merge(), {A: B2, B: B2}, CUT_WITHIN_S, None),
        (merge(), {A: B2, B: B1}, CUT_WITHIN_S, TaskEvent.REPEATED),
        (merge(), {A: B2, B: B2}, 1.1 + CUT_WITHIN_S, TaskEvent.EXPIRED),
        (merge(), {}, 1.1 + CUT_WITHIN_S, TaskEvent.EXPIRED),
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
