"""Bundle tasks of ``attach``: from its proposals, and as text and JSON."""

from dataclasses import replace
from typing import Any, Protocol

from loadmanager.attach.observation import PlacementProposal, Proposal
from loadmanager.attach.orders import CUT_AT
from loadmanager.attach.splitting import SplitProposal
from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskKind
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.orders import SplitOrder
from loadmanager.core.plan import Cause


class TaskLog(Protocol):
    """Receives tasks; ``why`` is the reason for which a task was proposed."""

    def task(self, task: BundleTask, why: str) -> None:
        """Report a task in a new state."""


def proposed_move(one: Proposal) -> BundleTask:
    """Return a move for the task controller."""
    return _proposed(TaskKind.MOVE, one.bundle, one.source, one.target, one.cause)


def proposed_split(one: SplitProposal) -> BundleTask:
    """Return a split for the task controller; both parts stay at their broker."""
    task = _proposed(TaskKind.SPLIT, one.bundle, one.broker, one.broker, Cause.OVERSIZED)
    return replace(task, splits={one.bundle: SplitOrder(CUT_AT, (one.cut,))})


def proposed_placement(one: PlacementProposal) -> BundleTask:
    """Return a placement for the task controller."""
    return BundleTask(
        kind=TaskKind.PLACE,
        bundles=(one.bundle,),
        source=None,
        target=one.target,
        cause=Cause.UNOWNED,
        asked_by=AskedBy.BALANCING,
    )


def _proposed(
    kind: TaskKind, bundle: BundleId, source: BrokerId, target: BrokerId, cause: Cause
) -> BundleTask:
    return BundleTask(
        kind=kind,
        bundles=(bundle,),
        source=source,
        target=target,
        cause=cause,
        asked_by=AskedBy.BALANCING,
        planned={bundle: source},
    )


def line(task: BundleTask, why: str) -> str:
    """Return a task as one line of text."""
    tries = f" after {task.attempts} attempts" if task.attempts > 1 else ""
    cut = _cut(task)
    way = f"{task.source or 'no broker'} -> {task.target}"
    what = way if cut is None else f"cut at 0x{cut:08x}"
    why_text = task.note if task.state.ended else why
    return f"{task.state}{tries}  {task.bundle}: {what}{f': {why_text}' if why_text else ''}"


def document(task: BundleTask, why: str) -> dict[str, Any]:
    """Return a task as JSON."""
    return {
        "epoch": task.epoch,
        "number": task.number,
        "kind": task.kind.value,
        "bundle": task.bundle,
        "source": task.source,
        "target": task.target,
        "cut": _cut(task),
        "cause": task.cause.value,
        "why": why,
        "askedBy": task.asked_by.word,
        "state": task.state.value,
        "attempts": task.attempts,
        "reason": task.note,
    }


def _cut(task: BundleTask) -> int | None:
    order = task.splits.get(task.bundle)
    return order.positions[0] if order else None
