"""Many combinations taken through one segment of history at once."""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from loadmanager.core.columns import Indices
from loadmanager.core.cost import CostDocument
from loadmanager.pipeline.what_if.course import Course, Rules
from loadmanager.pipeline.what_if.events import Event
from loadmanager.pipeline.what_if.frames import Frames, Refused
from loadmanager.pipeline.what_if.grid import Combination
from loadmanager.pipeline.what_if.measures import Line
from loadmanager.pipeline.what_if.planners import Planners
from loadmanager.pipeline.what_if.prices import LearnedPrices, Prices, TrafficPrices
from loadmanager.pipeline.what_if.reality import Reality
from loadmanager.pipeline.what_if.starts import spread_anew

_START: Final = (0, 1)
"""What the chance is numbered by that spreads bundles anew; the recorded has 0, others follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What is replayed and by which rules; ``reality`` is whether the recorded is measured, too.

    ``learned`` says what bundles cost brokers; without it, their traffic does.
    """

    combinations: Sequence[Combination]
    reality: bool = True
    rules: Rules = field(default_factory=Rules)
    learned: CostDocument | None = None

    @property
    def prices(self) -> Prices:
        """What bundles cost brokers."""
        return TrafficPrices() if self.learned is None else LearnedPrices(self.learned)

    def lines(self, segment: str, events: Iterable[Event]) -> Iterator[Line]:
        """Yield a line for each round and combination; what is recorded comes first.

        Chance, where strategies are indifferent, depends on ``segment`` and the
        combination alone. What is spread anew lies the same for all combinations.
        """
        recorded = Planners(learned=self.learned)
        reality = Reality(planners=recorded, rules=self.rules, rng=_rng(segment, 0))
        courses = [
            Course(
                number=one.number,
                planners=Planners(one.wanted, self.learned),
                rules=self.rules,
                measured=recorded,
                rng=_rng(segment, one.number + 1),
            )
            for one in self.combinations
        ]
        prices = self.prices
        anew: Indices | None = None
        for frame in Frames().of(events):
            if isinstance(frame, Refused):
                if self.reality:
                    yield reality.refused(frame)
                continue
            costs = prices.at(frame)
            if self.reality:
                yield reality.step(frame, costs)
            if frame.begins and any(one.spread_anew for one in self.combinations):
                anew = spread_anew(frame, recorded.at(frame), _rng(segment, *_START))
            for one, course in zip(self.combinations, courses, strict=True):
                yield course.step(frame, costs, anew if one.spread_anew else None)


def _rng(segment: str, *numbers: int) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(segment.encode()), *numbers])
