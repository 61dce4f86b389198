"""Bundle tasks of ``attach`` as text and JSON."""

from typing import Any

from loadmanager.core.bundle_task import BundleTask


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
