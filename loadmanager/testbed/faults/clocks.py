"""The clocks of processes: none of them shows the cluster's time."""

import asyncio
from random import Random
from typing import Final

from loadmanager.testbed.faults.virtual_time import wall_ms_at
from loadmanager.testbed.faults.wires import Gate

_AFTER_ALL_S: Final = 1e9
"""Later than any deadline, and still a number that can be computed with."""


class DriftingClock:
    """A monotonic clock that began elsewhere and runs a little faster or slower."""

    def __init__(self, offset_s: float = 0.0, rate: float = 1.0) -> None:
        self._offset_s = offset_s
        self.rate = rate
        self._time_s = asyncio.get_running_loop().time
        self._began_s = self._time_s()

    def monotonic_s(self) -> float:
        """Return the time that it shows."""
        passed_s = self._time_s() - self._began_s
        return self._began_s + self._offset_s + passed_s * self.rate

    def loop_s(self, shown_s: float) -> float:
        """Return the cluster's time at which it shows this."""
        return self._began_s + (shown_s - self._offset_s - self._began_s) / self.rate


class ProcessClock:
    """The `Clock` of one sidecar process.

    It goes on while the process is frozen, whose sleep does not end. ``jump_ms`` is how
    far its wall clock was set off.
    """

    def __init__(self, gate: Gate, rng: Random, drift_fraction: float) -> None:
        self._gate = gate
        rate = 1.0 + rng.uniform(-drift_fraction, drift_fraction) if drift_fraction else 1.0
        self._clock = DriftingClock(rate=rate)
        self._ended = False
        self.jump_ms = 0

    def end(self) -> None:
        """Let the process be dead: all that it might still have waited for is past."""
        self._ended = True

    def monotonic_s(self) -> float:
        """Return the process's time."""
        return _AFTER_ALL_S if self._ended else self._clock.monotonic_s()

    def wall_ms(self) -> int:
        """Return what the host's clock shows."""
        return wall_ms_at(asyncio.get_running_loop().time()) + self.jump_ms

    async def sleep(self, delay_s: float) -> None:
        """Return after ``delay_s``, when the process is let go on."""
        await asyncio.sleep(delay_s / self._clock.rate)
        await self._gate.passed()
