"""Replays one segment of history with many combinations at once, and their initial owners."""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from loadmanager.core.columns import Indices
from loadmanager.core.placement import RoundRobin
from loadmanager.core.planner import Planner
from loadmanager.core.playback import NOBODY, Playback
from loadmanager.core.shedding import ThresholdShedder
from loadmanager.pipeline.replay.combinations import Combination
from loadmanager.pipeline.replay.events import Event
from loadmanager.pipeline.replay.frames import Frame, Frames, Refused
from loadmanager.pipeline.replay.measures import Line
from loadmanager.pipeline.replay.recorded_rounds import RecordedRounds
from loadmanager.pipeline.replay.replay_run import Planners, ReplayRun, Rules, TrafficCosts
from loadmanager.pipeline.replay.views import other_view


def spread_anew(frame: Frame, planner: Planner, rng: np.random.Generator) -> Indices:
    """Return the broker row of each bundle, -1 for none: assigned in turn, in random order.

    All brokers get the same number of bundles, independently of load, within isolation policies,
    anti-affinity groups and drains. A bundle keeps its recorded owner if it belongs to its broker,
    is pinned, or no broker may have it.
    """
    staying = np.zeros(len(frame.owner), dtype=np.bool_)
    for name in frame.policies.staying:
        row = frame.bundles.index.get(name)
        if row is not None and row < len(staying):
            staying[row] = True
    dealt = frame.present & (frame.owner >= 0) & ~frame.bundles.system & ~staying
    owner = np.where(dealt, -1, frame.owner)
    rows = rng.permutation(np.flatnonzero(dealt)).tolist()
    dealer = replace(
        planner,
        shedder=ThresholdShedder(),
        placement=RoundRobin(),
        settings=replace(
            planner.settings, observe=False, shedding=False, placements_per_round=len(rows)
        ),
    )
    plan = Playback(dealer, rng).round(
        other_view(frame, frame.brokers, owner, NOBODY, like_java=False),
        unowned=[frame.bundles.names[row] for row in rows],
    )
    owner = frame.owner.copy()
    for move in plan.moves:
        owner[frame.bundles.index[move.bundle]] = frame.brokers.index[move.target]
    return owner


_START: Final = (0, 1)
"""The seed of the initial owners; recorded rounds have (0,), combinations (1,), (2,)..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReplay:
    """The combinations to replay, and the rules.

    With ``measure_recorded`` the recorded rounds are measured as well.
    """

    combinations: Sequence[Combination]
    measure_recorded: bool = True
    rules: Rules = field(default_factory=Rules)

    def lines(self, segment: str, events: Iterable[Event]) -> Iterator[Line]:
        """Yield a line for each round and combination; the recorded round comes first.

        Random choices depend only on ``segment`` and the combination. The initial owners are the
        same for all combinations that are spread anew.
        """
        recorded = Planners()
        recorded_rounds = RecordedRounds(planners=recorded, rules=self.rules, rng=_rng(segment, 0))
        runs = [
            ReplayRun(
                number=one.number,
                planners=Planners(one.wanted),
                rules=self.rules,
                measured=recorded,
                rng=_rng(segment, one.number + 1),
            )
            for one in self.combinations
        ]
        anew: Indices | None = None
        for frame in Frames().of(events):
            if isinstance(frame, Refused):
                if self.measure_recorded:
                    yield recorded_rounds.refused(frame)
                continue
            costs = TrafficCosts(frame)
            if self.measure_recorded:
                yield recorded_rounds.step(frame, costs)
            if frame.begins and any(one.spread_anew for one in self.combinations):
                anew = spread_anew(frame, recorded.at(frame), _rng(segment, *_START))
            for one, run in zip(self.combinations, runs, strict=True):
                yield run.step(frame, costs, anew if one.spread_anew else None)


def _rng(segment: str, *numbers: int) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(segment.encode()), *numbers])
