from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from loadmanager.adapters.pulsar_admin.moves import CUT_AT
from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskKind, TaskState
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.orders import SplitOrder
from loadmanager.core.plan import Cause
from loadmanager.core.rates import Rates, total

MOST_COLUMNS: Final = 120
_HOUR_S: Final = 3600.0
_OFTEN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """``max_over_mean`` is that of the fullest broker after a move and all moves before it."""

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


def line(task: BundleTask, why: str = "", traffic: Rates | None = None) -> str:
    """Return a task as one line, with ``why`` it was ordered unless it has ended."""
    tries = f" after {task.attempts} attempts" if task.attempts > 1 else ""
    cut = _cut(task)
    text = f"{task.source or 'no broker'} -> {task.target}"
    text = text if cut is None else f"cut at 0x{cut:08x}"
    if task.state is TaskState.SERVING and task.kind is TaskKind.MOVE:
        text += "" if traffic is None else f", {traffic.msgs_per_s:,.0f} msg/s"
        text += "" if task.pause_s is None else f", pause {task.pause_s:.1f} s"
    note = task.note if task.state.ended else why
    return f"{task.state}{tries}  {task.bundle}: {text}{note and f': {note}'}"


def short_line(task: BundleTask, traffic: Rates | None, columns: int) -> str:
    """Return `line` within ``columns``, with short names of brokers if needed."""
    text = line(task, traffic=traffic)
    if len(text) > columns:
        for broker in {task.source, task.target} - {None}:
            host = str(broker).rpartition(":")[0]
            first = host.partition(".")[0]
            text = text.replace(str(broker), host if first.isdecimal() else first)
    return text if len(text) <= columns else f"{text[: columns - 1]}…"


@dataclass(slots=True)
class LastHour:
    """The moves of the last hour; times are on any monotonic clock."""

    _moves: deque[tuple[float, BundleTask, Rates]] = field(default_factory=deque)

    def add(self, now_s: float, task: BundleTask, traffic: Rates | None) -> None:
        """Count an ended task, if it is a move that was ordered."""
        if task.kind is TaskKind.MOVE and task.attempts:
            self._moves.append((now_s, task, traffic or Rates()))

    def summary(self, now_s: float) -> Iterator[str]:
        while self._moves and self._moves[0][0] <= now_s - _HOUR_S:
            self._moves.popleft()
        if not self._moves:
            return
        states = Counter(str(task.state) for _, task, _ in self._moves)
        ends = ", ".join(f"{count} {state}" for state, count in states.most_common())
        moved = total([rates for *_, rates in self._moves])
        whole = f"{moved.msgs_per_s:,.0f} msg/s and {moved.bytes_per_s / 1e6:,.1f} MB/s moved"
        yield f"last hour: {len(self._moves)} moves ({ends}), {whole}"
        counts = Counter(task.bundle for _, task, _ in self._moves).most_common()
        if often := [f"{bundle} ({count})" for bundle, count in counts if count >= _OFTEN]:
            more = f" and {len(often) - _OFTEN} more" if len(often) > _OFTEN else ""
            yield f"moved more than twice: {', '.join(often[:_OFTEN])}{more}"
        paused = [(task.pause_s or 0.0, task.bundle) for _, task, _ in self._moves]
        if max(paused)[0] > 0:
            yield f"longest pause: {max(paused)[0]:.1f} s, of {max(paused)[1]}"


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
        "pauseS": task.pause_s,
        "reason": task.note,
    }


def _cut(task: BundleTask) -> int | None:
    order = task.splits.get(task.bundle)
    return order.positions[0] if order else None
