"""The units of the regression: brokers in classes, numbered."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """One broker in one class, with the number and the range of its minutes."""

    cluster: str
    broker_class: str
    broker: str
    minutes: int
    first_minute: int
    last_minute: int


@dataclass(frozen=True, slots=True)
class Units:
    """All units and classes in order, which defines their numbers."""

    every: tuple[Unit, ...]
    classes: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, found: Iterable[Unit]) -> "Units":
        every = tuple(sorted(found))
        classes = sorted({(one.cluster, one.broker_class) for one in every})
        return cls(every, tuple(classes))

    @property
    def class_of(self) -> list[int]:
        numbers = {one: number for number, one in enumerate(self.classes)}
        return [numbers[one.cluster, one.broker_class] for one in self.every]

    @property
    def largest_cluster(self) -> str:
        minutes: dict[str, int] = {}
        for one in self.every:
            minutes[one.cluster] = minutes.get(one.cluster, 0) + one.minutes
        return max(sorted(minutes), key=lambda name: minutes[name])

    @property
    def middle_minute(self) -> int:
        """The middle of the history: the median of the middles of units, weighted by minutes.

        A broker whose clock was once years ahead does not make one half of the history empty.
        """
        middles = sorted(
            ((one.first_minute + one.last_minute + 1) // 2, one.minutes) for one in self.every
        )
        half, so_far = sum(minutes for _, minutes in middles) / 2, 0
        for middle, minutes in middles:
            so_far += minutes
            if so_far >= half:
                return middle
        raise ValueError("no unit has a minute; expected one at least")


BLOCKS_MINUTES: Final = (1440, 360, 60, 10)
WANTED_BLOCKS: Final = 40


def block_minutes(units: Sequence[Unit]) -> int:
    """Return the length of blocks, within which errors may be correlated: a day if possible.

    It is the longest of `BLOCKS_MINUTES` of which the largest class has `WANTED_BLOCKS`, enough to
    estimate the covariance.
    """
    for length in BLOCKS_MINUTES:
        blocks: dict[tuple[str, str], int] = {}
        for one in units:
            spanned = one.last_minute // length - one.first_minute // length + 1
            of_class = one.cluster, one.broker_class
            there = min(spanned, int(np.ceil(one.minutes / max(1, length // 10))))
            blocks[of_class] = blocks.get(of_class, 0) + there
        if max(blocks.values()) >= WANTED_BLOCKS:
            return length
    return BLOCKS_MINUTES[-1]
