"""Replays one segment of history with many combinations at once, and their initial owners."""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from loadmanager.core.columns import Indices
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.placement import RoundRobin
from loadmanager.core.planner import NONE_LEAVE, Planner
from loadmanager.core.playback import Playback
from loadmanager.core.projection import loads
from loadmanager.core.scores import RESOURCES, FloatArray
from loadmanager.core.shedding import ThresholdShedder
from loadmanager.pipeline.replay.combinations import Combination
from loadmanager.pipeline.replay.events import Event
from loadmanager.pipeline.replay.frames import Frame, Frames, Refused
from loadmanager.pipeline.replay.measures import Ledger, Line, Moved, measure
from loadmanager.pipeline.replay.replay_run import (
    Planners,
    ReplayRun,
    Rules,
    TrafficCosts,
    following,
    other_view,
    plain_weights,
    recorded_view,
)


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
        other_view(frame, frame.brokers, owner, NONE_LEAVE, like_java=False),
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


RECORDED: Final = -1
"""The number of the recorded rounds among the combinations."""

_Decision = tuple[str, str | None, str, str]


@dataclass(slots=True, kw_only=True)
class RecordedRounds:
    planners: Planners
    rules: Rules
    rng: np.random.Generator
    _ledger: Ledger = field(default_factory=Ledger)
    _former: tuple[Frame, TrafficCosts] | None = None
    _began_s: float = 0.0

    def step(self, frame: Frame, costs: TrafficCosts) -> Line:
        if frame.begins:
            self._began_s = frame.at_s
        planner = self.planners.at(frame)
        view = recorded_view(frame, like_java=planner.weights.like_java)
        line = Line(
            combination=RECORDED,
            at_ms=round(frame.at_s * 1000),
            weight_s=frame.until_s - frame.at_s,
            settling=frame.at_s < self._began_s + self.rules.settle_s,
        )
        measure(line, loads(view, plain_weights(planner)), self.rules.overload)
        line.bytes_per_s = float(frame.rates[frame.present, 2:4].sum())
        self._ledger.count(line, frame, _carried_out(frame))
        if frame.memory is not None:
            line.note = self._difference(frame)
            line.reproduced = not line.note
        if self._former is not None and not frame.begins:
            line.errors = _errors(*self._former, frame)
        self._former = (frame, costs)
        return line

    def refused(self, refused: Refused) -> Line:
        return Line(
            combination=RECORDED,
            at_ms=round(refused.at_s * 1000),
            weight_s=refused.until_s - refused.at_s,
            refused=refused.reason,
            note=refused.detail,
        )

    def _difference(self, frame: Frame) -> str:
        """Return the difference of a repeated decision at a base round; empty if there is none."""
        want = [_decision(one) for one in frame.moves if one["round"] == frame.number]
        targets = {BundleId(bundle): BrokerId(target) for bundle, _, target, _ in want}
        planner = following(self.planners.at(frame), targets)
        assert frame.memory is not None  # noqa: S101 - asked for base rounds alone
        plan = Playback(planner, self.rng, frame.memory).round(
            recorded_view(frame, like_java=planner.weights.like_java),
            unowned=[BundleId(bundle) for bundle, source, _, _ in want if source is None],
            session_doubtful=frame.session_doubtful,
        )
        got = [
            (one.bundle, one.source, one.target, one.cause.value)
            for one in (*plan.moves, *plan.observed)
        ]
        if got == want:
            return ""
        return f"round {frame.number} of epoch {frame.epoch}: {_difference(want, got)}"


def _decision(body: Mapping[str, Any]) -> _Decision:
    return body["bundle"], body["source"], body["target"], body["cause"]


def _difference(want: Sequence[_Decision], got: Sequence[_Decision]) -> str:
    for recorded, replayed in zip(want, got, strict=False):
        if recorded != replayed:
            return f"recorded {_move(recorded)}, replayed {_move(replayed)}"
    if len(want) > len(got):
        return f"recorded {_move(want[len(got)])}, replayed nothing more"
    return f"recorded nothing more, replayed {_move(got[len(want)])}"


def _move(one: _Decision) -> str:
    bundle, source, target, _ = one
    return f"{bundle} from {source or 'no broker'} to {target}"


def _carried_out(frame: Frame) -> Iterator[Moved]:
    numbers = frame.all_brokers
    for one in frame.carried_out:
        row = frame.bundles.index.get(BundleId(one.bundle))
        if row is not None and row < len(frame.rates):
            source = -1 if one.source is None else numbers.number(one.source)
            yield Moved(row, source, numbers.number(one.target), one.cause)


def _errors(former: Frame, costs: TrafficCosts, frame: Frame) -> list[float] | None:
    """Return the errors of the usage of this round, predicted at the previous round.

    The prediction uses the traffic of this round, so that only the costs are judged. Four lists by
    resource: sum and number of absolute errors, relative to the limit, of brokers whose bundles
    changed, and of all others. None if there is nothing to compare.
    """
    here, there = _both(former, frame)
    if not len(here):
        return None
    rows = np.full(len(frame.brokers.names), -1, dtype=np.intp)
    rows[here] = there
    owner = np.where(frame.owner >= 0, rows[frame.owner], -1)
    predicted = costs.predicted(frame.rates, owner)[there]
    limit = frame.brokers.limit[here]
    known = (limit > 0) & (former.brokers.limit[there] == limit)
    off = np.abs(predicted - frame.brokers.usage[here]) / np.where(known, limit, 1.0)
    changed = np.isin(there, _changed(former, frame, owner))[:, None]
    found: list[FloatArray] = []
    for group in (known & changed, known & ~changed):
        found += [np.where(group, off, 0.0).sum(axis=0), group.sum(axis=0).astype(np.float64)]
    return [float(value) for one in found for value in one]


ERROR_COLUMNS: Final = tuple(
    (group, resource, what)
    for group in ("changed", "unchanged")
    for what in ("sum", "count")
    for resource in RESOURCES
)
"""The meaning of each number of `Line.errors`."""


def _both(former: Frame, frame: Frame) -> tuple[Indices, Indices]:
    """Return the rows in both frames of brokers that did not restart and reported since."""
    found = [
        (row, former.brokers.index[name])
        for row, name in enumerate(frame.brokers.names)
        if name in former.brokers.index
    ]
    sound = [
        (row, before)
        for row, before in found
        if frame.brokers.started_at_ms[row] == former.brokers.started_at_ms[before]
        and frame.reports[row].at_ms > former.reports[before].at_ms
    ]
    pairs = np.array(sound, dtype=np.intp).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _changed(former: Frame, frame: Frame, owner: Indices) -> Indices:
    """Return the former rows of brokers that gained or lost a bundle with traffic."""
    count = len(former.owner)
    before = np.full(len(owner), -1, dtype=np.intp)
    before[:count] = former.owner
    moved = (before != owner) & (frame.rates[:, :4].sum(axis=1) > 0)
    return np.unique(np.concatenate([before[moved], owner[moved]]))
