"""Bundle tasks as ``attach`` follows and tells them."""

from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Protocol

from loadmanager.adapters.pulsar_admin.moves import OutcomeState
from loadmanager.attach.observation import Proposal
from loadmanager.attach.splitting import SplitProposal
from loadmanager.core.bundle_task import (
    AskedBy,
    BundleTask,
    TaskEvent,
    TaskKind,
    TaskState,
    advanced,
)
from loadmanager.core.orders import SplitOrder
from loadmanager.core.plan import Cause

CUT_AT: Final = "specified_positions_divide"
_ORDERED_ENDS: Final[Mapping[OutcomeState, TaskEvent]] = {
    "serving": TaskEvent.DONE,
    "failed": TaskEvent.GAVE_UP,
    "superseded": TaskEvent.REPLACED,
    "timed_out": TaskEvent.EXPIRED,
    "landed_elsewhere": TaskEvent.SERVED_ELSEWHERE,
}
_PROPOSED_ENDS: Final[Mapping[OutcomeState, TaskEvent]] = {
    "failed": TaskEvent.ORDER_REFUSED,
    "superseded": TaskEvent.TERM_ENDED,
}


class TaskLog(Protocol):
    """Where a task is reported; ``why`` says why it was proposed."""

    def task(self, task: BundleTask, why: str) -> None:
        """A task in a new state."""


@dataclass(slots=True)
class Followed:
    """One task while it is carried out."""

    task: BundleTask
    why: str
    log: TaskLog

    def ordered(self) -> None:
        """An order is sent; the second one and later ones are attempts of the same task."""
        again = self.task.state is TaskState.ORDERED
        event = TaskEvent.REPEATED if again else TaskEvent.ORDER_WRITTEN
        self.task = advanced(self.task, event, monotonic())
        if not again:
            self.log.task(self.task, self.why)

    def ended(self, state: OutcomeState, note: str) -> None:
        """It is over."""
        ends = _ORDERED_ENDS if self.task.state is TaskState.ORDERED else _PROPOSED_ENDS
        self.task = advanced(self.task, ends[state], monotonic(), note)
        self.log.task(self.task, self.why)


def followed_move(proposal: Proposal, number: int, epoch: int, log: TaskLog) -> Followed:
    """Return the task of a move in a term; epoch 0 where there are no terms."""
    task = BundleTask(
        number=number,
        epoch=epoch,
        kind=TaskKind.MOVE,
        bundles=(proposal.bundle,),
        source=proposal.source,
        target=proposal.target,
        cause=Cause.IMBALANCE,
        asked_by=AskedBy.BALANCING,
        proposed_at_s=monotonic(),
    )
    return Followed(task, proposal.reason(), log)


def followed_split(proposal: SplitProposal, number: int, epoch: int, log: TaskLog) -> Followed:
    """Return the task of a split; both parts stay at the broker."""
    task = BundleTask(
        number=number,
        epoch=epoch,
        kind=TaskKind.SPLIT,
        bundles=(proposal.bundle,),
        source=proposal.broker,
        target=proposal.broker,
        cause=Cause.OVERSIZED,
        asked_by=AskedBy.BALANCING,
        proposed_at_s=monotonic(),
        splits={proposal.bundle: SplitOrder(CUT_AT, (proposal.cut,))},
    )
    return Followed(task, proposal.reason(), log)


def line(task: BundleTask, why: str) -> str:
    """Return a task as text for people."""
    tries = f" after {task.attempts} attempts" if task.attempts > 1 else ""
    cut = _cut(task)
    what = f"{task.source} -> {task.target}" if cut is None else f"cut at 0x{cut:08x}"
    told = task.note if task.state.ended else why
    return f"{task.state}{tries}  {task.bundle}: {what}{f': {told}' if told else ''}"


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
