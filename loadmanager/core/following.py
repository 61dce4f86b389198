"""Derives events of bundle tasks, and missing tasks, from standing orders and owners."""

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Final

from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskEvent, TaskKind, TaskState
from loadmanager.core.ids import BrokerId, BundleId, namespace_of, range_of
from loadmanager.core.live_tasks import LiveTasks
from loadmanager.core.orders import SplitOrder
from loadmanager.core.plan import Cause
from loadmanager.core.splitting.merging import merges_in, whole_ordered

CUT_WITHIN_S: Final = 60.0
"""How long an order to split or merge stands before it is withdrawn."""

Owner = Callable[[BundleId], BrokerId | None]
Assigned = Mapping[BundleId, BrokerId]
Splits = Mapping[BundleId, SplitOrder]


def stands(task: BundleTask, assigned: Assigned, splits: Splits) -> bool:
    placed = all(assigned.get(bundle) == task.target for bundle in task.bundles)
    return placed and all(splits.get(bundle) == order for bundle, order in task.splits.items())


def ended_by(task: BundleTask, assigned: Assigned, splits: Splits) -> TaskEvent | None:
    """Return the event that ends a task whose order no longer stands, None if it stands."""
    if task.state is TaskState.UNCONFIRMED or stands(task, assigned, splits):
        return None
    # A split or merged bundle was replaced in the orders by its parts or by the merged bundle.
    gone = not any(bundle in assigned for bundle in task.bundles)
    made = not task.relocates and gone and any(_overlaps(task, bundle) for bundle in assigned)
    return TaskEvent.DONE if made else TaskEvent.REPLACED


def _overlaps(task: BundleTask, bundle: BundleId) -> bool:
    low, high = range_of(task.bundles[0])[0], range_of(task.bundles[-1])[1]
    lower, upper = range_of(bundle)
    return namespace_of(bundle) == namespace_of(task.bundle) and lower < high and low < upper


def seen(task: BundleTask, owner: BrokerId | None, *, serving: bool) -> Iterator[TaskEvent]:
    if not task.relocates or task.state is TaskState.UNCONFIRMED:
        return
    if task.state is TaskState.ORDERED and task.source not in {None, owner}:
        yield TaskEvent.SOURCE_RELEASED
    if owner == task.target and serving:
        yield TaskEvent.DONE


def overdue(
    task: BundleTask,
    owner: Owner,
    brokers: Container[BrokerId],
    now_s: float,
    lost_after_s: float,
) -> TaskEvent | None:
    """Return the event due for a task that was not carried out in time, None for none.

    A split or merge that is not made within `CUT_WITHIN_S` expires. If the target is one of
    ``brokers`` and does not own a bundle ``lost_after_s`` after the order was last written, the
    order is written again: it may have been deleted or corrupted, and the broker would wait
    forever.
    """
    if task.attempted_at_s is None or task.ordered_at_s is None:
        return None  # It is unknown whether the order was written.
    if not task.relocates and now_s - task.ordered_at_s > CUT_WITHIN_S:
        return TaskEvent.EXPIRED
    waits = task.target in brokers and any(owner(bundle) != task.target for bundle in task.bundles)
    return TaskEvent.REPEATED if waits and now_s - task.attempted_at_s >= lost_after_s else None


def unfollowed(
    tasks: LiveTasks, owner: Owner, assigned: Assigned, splits: Splits
) -> Iterator[BundleTask]:
    """Yield proposals for the orders that stand, are not carried out and have no task.

    The proposals may be turned into tasks during the iteration.
    """
    for bundle, target in assigned.items():
        source = owner(bundle)
        if source != target and tasks.of(bundle) is None:
            yield BundleTask(
                kind=TaskKind.PLACE if source is None else TaskKind.MOVE,
                bundles=(bundle,),
                source=source,
                target=target,
                cause=Cause.UNOWNED if source is None else Cause.INHERITED,
                asked_by=AskedBy.RECONCILIATION,
            )
    cuts = {bundle: order for bundle, order in splits.items() if tasks.of(bundle) is None}
    merges = [
        both.halves for both in merges_in(cuts) if assigned[both.lower] == assigned[both.upper]
    ]
    # A half whose other half no longer exists, or is on another broker, has a task as well,
    # which expires.
    alone = cuts.keys() - {half for halves in merges for half in halves}
    for some in [*merges, *((bundle,) for bundle in sorted(alone))]:
        merged = whole_ordered(some[0], cuts[some[0]]) is not None
        yield BundleTask(
            kind=TaskKind.MERGE if merged else TaskKind.SPLIT,
            bundles=some,
            source=None,
            target=assigned[some[0]],
            cause=Cause.INHERITED,
            asked_by=AskedBy.RECONCILIATION,
            splits={bundle: cuts[bundle] for bundle in some},
        )
