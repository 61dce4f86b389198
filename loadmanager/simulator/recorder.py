"""Records the true state at intervals, for scores and charts."""

from typing import Any

import numpy as np

from loadmanager.core.rates import BYTES_IN, BYTES_OUT, MSGS_IN, MSGS_OUT
from loadmanager.simulator.run import Floats, Timeline
from loadmanager.simulator.world import Moment, World, sums


class Recorder:
    def __init__(self, world: World, every_s: float) -> None:
        self._world = world
        self._every_s = every_s
        self._next_s = 0.0
        self._times_s: list[float] = []
        self._rows: list[dict[str, Floats]] = []

    def look(self, now_s: float, moment: Moment) -> None:
        if now_s < self._next_s:
            return
        self._next_s = (now_s // self._every_s + 1) * self._every_s
        self._times_s.append(now_s)
        self._rows.append(self._row(moment))

    def timeline(self) -> Timeline:
        columns: dict[str, Any] = {
            name: np.stack([row[name] for row in self._rows]) for name in self._rows[0]
        }
        columns["present"] = columns["present"] > 0
        columns["bundles"] = columns["bundles"].astype(np.int32)
        return Timeline(time_s=np.array(self._times_s), brokers=self._world.brokers, **columns)

    def _row(self, moment: Moment) -> dict[str, Floats]:
        world, measured, use = self._world, moment.measured, moment.use
        alive = world.members.alive
        absent = np.where(alive, 0.0, np.nan)[:, np.newaxis]
        served = sums(measured.owner, measured.rates.T, len(alive))
        wanted = moment.wanted[:, MSGS_IN] + moment.wanted[:, MSGS_OUT]
        row = {
            "demand": use.demand + absent,
            "served": use.usage / world.fleet.capacity + absent,
            "present": alive,
            "msgs_per_s": served[:, MSGS_IN] + served[:, MSGS_OUT],
            "bytes_per_s": served[:, BYTES_IN] + served[:, BYTES_OUT],
            "bundles": np.bincount(measured.owner + 1, minlength=len(alive) + 1)[1:],
            "bound": np.array(world.bound()),
            "unowned_msgs_per_s": np.array(wanted[measured.owner < 0].sum()),
            "excess": np.array(world.excess(use.demand)),
            "unmoved_cpu": world.unmoved_cpu() + absent[:, 0],
        }
        return {name: np.asarray(value, dtype=np.float32) for name, value in row.items()}
