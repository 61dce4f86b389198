"""Whether the machine let processes run: a clock-watch of its own, beside the cluster.

``python fault_stalls.py RECORD`` rests, works a little, and writes down how long that
took, for ever. It takes part in nothing, so what it lost was lost to the machine: to
others that ran, or to a virtual machine that stood still. Bounds on time are promises
about machines with room; where it shows that there was none, a late recovery proves
nothing, and the run is repeated.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, sleep

REST_S = 0.04
WORK = 200_000
"""Additions: some two milliseconds on a machine of today."""

STALL_S = 0.1
"""A turn later than this was a stall; waking up takes some milliseconds always."""

OWN_S = 1.0
"""What a bound leaves to the service itself, on a machine with room."""

SLOW = 2.0
"""Work that took so many times its best did not get the half of a core."""


@dataclass(frozen=True, slots=True)
class Turn:
    began_s: float
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowness:
    """How a stretch of time went: ``stalled_s`` in all, and a usual turn by the best ever."""

    stalled_s: float
    factor: float

    def explains(self, late_s: float) -> bool:
        """Return whether something may have been this late for want of a machine.

        Timeouts take no longer on a slow one, only the service's own part of a bound does.
        """
        slowed_s = (self.factor - 1) * OWN_S if self.factor >= SLOW else 0.0
        return self.stalled_s + slowed_s >= late_s

    def __str__(self) -> str:
        return f"the machine stalled for {self.stalled_s:.2f} s, work took {self.factor:.1f} times"


class Stalls:
    def __init__(self, record: Path) -> None:
        lines = record.read_text().split("\n")[:-1]
        self._turns = [Turn(*map(float, line.split())) for line in lines]
        self._best_s = min((turn.took_s for turn in self._turns), default=REST_S)

    def between(self, from_s: float, until_s: float) -> Slowness:
        """Return how that time went; without a single turn in it, all of it was a stall."""
        turns = [
            turn
            for turn in self._turns
            if turn.began_s < until_s and turn.began_s + turn.took_s > from_s
        ]
        if not turns:
            return Slowness(stalled_s=until_s - from_s, factor=SLOW)
        late = [turn.took_s - self._best_s for turn in turns]
        working_s = median(turn.took_s - REST_S for turn in turns)
        return Slowness(
            stalled_s=sum(one for one in late if one > STALL_S),
            factor=working_s / (self._best_s - REST_S),
        )


def watch(record: Path) -> None:
    with record.open("a", buffering=1) as lines:
        while True:
            began_s = monotonic()
            sleep(REST_S)
            sum(range(WORK))
            lines.write(f"{began_s:.4f} {monotonic() - began_s:.4f}\n")


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
