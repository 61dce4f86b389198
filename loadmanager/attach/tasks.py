from dataclasses import dataclass
from typing import Any

from loadmanager.attach.orders import CUT_AT
from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskKind
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.orders import SplitOrder
from loadmanager.core.plan import Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A proposed placement, move or split, with the strategy's cause and its reason in one line.

    ``source`` is None if no broker serves the bundle. ``cut`` is the position of a split.
    ``max_over_mean`` is that of the fullest broker after a move and all moves before it.
    ``weighed`` is the benefit and cost of a move that were compared, "" if none were. ``needing``
    is a topic of another bundle that loads only if this one is served, "" for most bundles.
    """

    kind: TaskKind
    bundle: BundleId
    source: BrokerId | None
    target: BrokerId
    cause: Cause
    reason: str
    cut: int | None = None
    msgs_per_s: float = 0.0
    bytes_per_s: float = 0.0
    max_over_mean: float = 0.0
    weighed: str = ""
    needing: str = ""

    def task(self) -> BundleTask:
        """Return its task, which is outdated if the bundle leaves its source."""
        splits = {} if self.cut is None else {self.bundle: SplitOrder(CUT_AT, (self.cut,))}
        return BundleTask(
            kind=self.kind,
            bundles=(self.bundle,),
            source=self.source,
            target=self.target,
            cause=self.cause,
            asked_by=AskedBy.BALANCING,
            planned={} if self.source is None else {self.bundle: self.source},
            splits=splits,
        )


def line(task: BundleTask, why: str) -> str:
    tries = f" after {task.attempts} attempts" if task.attempts > 1 else ""
    cut = _cut(task)
    way = f"{task.source or 'no broker'} -> {task.target}"
    what = way if cut is None else f"cut at 0x{cut:08x}"
    why_text = task.note if task.state.ended else why
    return f"{task.state}{tries}  {task.bundle}: {what}{f': {why_text}' if why_text else ''}"


def document(task: BundleTask, why: str) -> dict[str, Any]:
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
