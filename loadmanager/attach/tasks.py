"""One move as the log tells it, from its proposal to how it ended."""

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
class MoveTask:
    """One move.

    Attributes:
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
    asked_by: str = ASKED_BY
    state: State = "proposed"
    since_s: float = 0.0
    attempts: int = 0
    reason: str = ""

    def line(self) -> str:
        """Return it as text for people."""
        tries = f" after {self.attempts} attempts" if self.attempts > 1 else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.state}{tries}  {self.bundle}: {self.source} -> {self.target}{why}"

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "bundle": self.bundle,
            "source": self.source,
            "target": self.target,
            "cause": self.cause,
            "askedBy": self.asked_by,
            "state": self.state,
            "attempts": self.attempts,
            "reason": self.reason,
        }
