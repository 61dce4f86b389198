"""Loads of a run, downsampled for a picture without losing peaks."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.simulator.run import Timeline

POINTS: Final = 240
"""The most points of a series; each stands for one interval."""


@dataclass(frozen=True, eq=False, slots=True)
class Thinned:
    """The loads of N intervals and B brokers: the highest of each interval.

    A broker's load is its demand on its scarcest resource, as a fraction of capacity; NaN
    while it is absent. ``resource`` (N, B) is that resource, as an index of
    `run.RESOURCES`. ``bound`` is the highest lower bound of an interval. ``time_s`` is
    the beginning of each interval, ``every`` the number of its recorded moments.
    """

    time_s: NDArray[np.float64]
    load: NDArray[np.float64]
    resource: NDArray[np.int64]
    bound: NDArray[np.float64]
    every: int

    @property
    def highest(self) -> NDArray[np.float64]:
        """The load of the most loaded broker of each interval; NaN without any broker."""
        return np.asarray(np.fmax.reduce(self.load, axis=1), dtype=np.float64)

    def percentile(self, fraction: float) -> NDArray[np.float64]:
        """Return the load that ``fraction`` of the present brokers do not exceed, by interval.

        It is the load of one broker, without interpolation; NaN without brokers.
        """
        ordered = np.sort(self.load, axis=1)  # NaN comes last
        there = np.isfinite(ordered).sum(axis=1)
        place = np.rint(fraction * np.maximum(there - 1, 0)).astype(np.int64)
        return np.asarray(np.take_along_axis(ordered, place[:, None], axis=1)[:, 0])


def thinned(timeline: Timeline, points: int = POINTS) -> Thinned:
    every = max(1, -(-len(timeline.time_s) // points))
    demand = np.asarray(timeline.demand, dtype=np.float64)
    known = np.where(np.isfinite(demand), demand, -np.inf)
    load = known.max(axis=2)
    load[~np.isfinite(load)] = np.nan
    folded = _intervals(load, every)
    moment = np.where(np.isfinite(folded), folded, -np.inf).argmax(axis=1)
    resources = _intervals(known.argmax(axis=2).astype(np.float64), every)
    return Thinned(
        time_s=np.asarray(timeline.time_s[::every], dtype=np.float64),
        load=np.take_along_axis(folded, moment[:, None], axis=1)[:, 0],
        resource=np.take_along_axis(resources, moment[:, None], axis=1)[:, 0].astype(np.int64),
        bound=np.fmax.reduce(_intervals(timeline.bound[:, None], every), axis=1)[:, 0],
        every=every,
    )


def _intervals(values: NDArray[np.floating], every: int) -> NDArray[np.float64]:
    """Return ``values`` (T, B) as (N, every, B); the last interval is padded with NaN."""
    missing = -len(values) % every
    filled = np.pad(
        np.asarray(values, dtype=np.float64), ((0, missing), (0, 0)), constant_values=np.nan
    )
    return filled.reshape(-1, every, values.shape[1])
