"""One move or split as the log tells it, from its proposal to how it ended."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from loadmanager.core.ids import BrokerId, BundleId

State = Literal[
    "proposed",
    "ordered",
    "serving",
    "failed",
    "superseded",
    "timed_out",
    "landed_elsewhere",
]
ASKED_BY: Final = "attach"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachTask:
    """One move or split.

    Attributes:
        target: of a split the source, where both parts stay.
        cut: where a split cuts the bundle, None for a move.
        cause: why it was proposed.
        asked_by: who wants it.
        since_s: when the state began, on the monotonic clock of this process.
        attempts: how often it was ordered.
        reason: why the state is what it is, "" where it says everything.
    """

    bundle: BundleId
    source: BrokerId
    target: BrokerId
    cause: str
    cut: int | None = None
    asked_by: str = ASKED_BY
    state: State = "proposed"
    since_s: float = 0.0
    attempts: int = 0
    reason: str = ""

    def line(self) -> str:
        """Return it as text for people."""
        tries = f" after {self.attempts} attempts" if self.attempts > 1 else ""
        why = f": {self.reason}" if self.reason else ""
        what = f"{self.source} -> {self.target}" if self.cut is None else f"cut at 0x{self.cut:08x}"
        return f"{self.state}{tries}  {self.bundle}: {what}{why}"

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "kind": "move" if self.cut is None else "split",
            "bundle": self.bundle,
            "source": self.source,
            "target": self.target,
            "cut": self.cut,
            "cause": self.cause,
            "askedBy": self.asked_by,
            "state": self.state,
            "attempts": self.attempts,
            "reason": self.reason,
        }
