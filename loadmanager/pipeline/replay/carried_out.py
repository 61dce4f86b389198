"""The moves that were carried out between two rounds of the recorded leader."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from loadmanager.core.bundle_task import AskedBy, TaskKind, TaskState
from loadmanager.core.plan import Cause

_RELOCATING: Final = frozenset({TaskKind.PLACE, TaskKind.MOVE})
_ORDERED: Final = frozenset({"moved", "placed"})


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """A bundle that went to another broker; ``source`` is None if it had no owner."""

    bundle: str
    source: str | None
    target: str
    cause: Cause


@dataclass(slots=True)
class CarriedOutMoves:
    """Collects the moves that were carried out, in order.

    In a term with ``task`` lines a move was carried out when its task reached ``serving``: an
    order that was superseded or timed out moved nothing. Tasks that follow orders of a former
    leader were decided in that leader's term and are left out. Histories of 0.1 have no such
    lines; there every move whose order was written counts.
    """

    _tasks: list[CarriedOut] = field(default_factory=list)
    _moves: list[tuple[int, CarriedOut]] = field(default_factory=list)
    _epoch: int | None = None
    """The last epoch with a ``task`` line."""

    def task(self, body: Mapping[str, Any]) -> None:
        self._epoch = body["epoch"]
        decided = body["asked_by"] != AskedBy.RECONCILIATION.word
        if decided and body["action"] in _RELOCATING and body["state"] == TaskState.SERVING:
            self._tasks.append(_carried_out(body["bundles"][0], body))

    def move(self, body: Mapping[str, Any]) -> None:
        if body["outcome"] in _ORDERED:
            self._moves.append((body["epoch"], _carried_out(body["bundle"], body)))

    def taken(self) -> tuple[CarriedOut, ...]:
        """Return the collected moves, and clear them."""
        moves = (move for epoch, move in self._moves if epoch != self._epoch)
        found = (*self._tasks, *moves)
        self._tasks, self._moves = [], []
        return found


def _carried_out(bundle: str, body: Mapping[str, Any]) -> CarriedOut:
    return CarriedOut(bundle, body["source"], body["target"], Cause(body["cause"]))
