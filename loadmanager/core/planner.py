from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.filters import Filters
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.joint.learning import Learned
from loadmanager.core.joint.weighing import Weigher
from loadmanager.core.memory import Memory, RoundMemory
from loadmanager.core.optimality import Divided, Optimality, divided, optimality_of
from loadmanager.core.placement import LeastLongTermMessageRate, Placement, Watching
from loadmanager.core.plan import Cause, Move, Reason, Refusal, Steps
from loadmanager.core.planner_settings import Mode, PlannerSettings
from loadmanager.core.projection import CostModel, TrafficShare, settled
from loadmanager.core.round_work import RoundWork
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.settings import with_arithmetic
from loadmanager.core.shedding import Deciding, Shedder, ThresholdShedder

_LEAST_BROKERS = 2
NONE_LEAVE: Mapping[BundleId, BrokerId] = MappingProxyType({})


def closed_gate(
    view: ClusterView, settings: PlannerSettings, max_report_age_s: float
) -> Refusal | None:
    """Return why no bundle may be shed in this round, None if shedding is allowed.

    These conditions never prevent the placement of bundles without an owner: an unserved bundle
    is worse than a badly placed one.
    """
    if not settings.shedding:
        return Refusal("", Reason.SHEDDING_OFF)
    count = len(view.brokers.names)
    if count < _LEAST_BROKERS:
        return Refusal("", Reason.TOO_FEW_BROKERS, f"{count} brokers")
    lost = sum(view.now_s - left_s < settings.lost_window_s for left_s in view.departures_s)
    if lost > settings.max_lost_fraction * (count + lost):
        return Refusal("", Reason.BROKERS_LOST, f"{lost} of {count + lost} lately")
    changed_s = view.now_s - view.membership_changed_s
    if changed_s < settings.settle_s:
        return Refusal("", Reason.MEMBERSHIP_CHANGING, f"changed {changed_s:.0f} s ago")
    stale = int(np.count_nonzero(view.age_s > max_report_age_s))
    if stale > settings.max_stale_fraction * count:
        return Refusal("", Reason.REPORTS_STALE, f"{stale} of {count} brokers")
    return None


EARLY_ROUND_S: Final = 10.0
"""Least time between two rounds of which the second comes before its interval has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decisions of a round.

    ``moves`` are to be carried out; ``observed`` are the moves that an observing planner only
    reports. ``refusals`` are the reasons why everything else was left alone.
    """

    moves: tuple[Move, ...]
    refusals: tuple[Refusal, ...]
    memory: RoundMemory
    observed: tuple[Move, ...] = ()

    def memory_before_orders(self, former: RoundMemory) -> RoundMemory:
        """Return the memory before any move is ordered; ``former`` is that before the round.

        It excludes the cool-downs of bundles that have not moved yet, and the shedder's memory
        of the moves: these would only restrict the next round, which decides again.
        """
        if not self.moves:
            return self.memory
        moving = {move.bundle for move in self.moves}
        moved_at_s = {b: s for b, s in self.memory.moved_at_s.items() if b not in moving}
        moved_at_s |= {b: s for b, s in former.moved_at_s.items() if b in moving}
        return replace(self.memory, shedder=former.shedder, moved_at_s=moved_at_s)

    def memory_after_orders(
        self, memory: RoundMemory, ordered: Collection[BundleId]
    ) -> RoundMemory:
        then_s = self.memory.moved_at_s
        moved = {move.bundle for move in self.moves} & then_s.keys() & set(ordered)
        if not moved:
            return memory
        moved_at_s = {**memory.moved_at_s, **{bundle: then_s[bundle] for bundle in moved}}
        return replace(memory, shedder=self.memory.shedder, moved_at_s=moved_at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Turns the offers of strategies into moves.

    Each move is chosen on the view projected after the preceding moves, so that moves do not
    pile up on one broker. Bundle and target are chosen together, so that no bundle is unloaded
    without a better broker for it. ``weights`` define what "better" means.

    The mode determines for all parts whether they reproduce Pulsar's accidents.
    """

    shedder: Shedder = field(default_factory=ThresholdShedder)
    placement: Placement = field(default_factory=LeastLongTermMessageRate)
    settings: PlannerSettings = field(default_factory=PlannerSettings)
    filters: Filters = field(default_factory=Filters)
    cost: CostModel = field(default_factory=TrafficShare)
    weights: ResourceWeights = field(default_factory=ResourceWeights)

    def __post_init__(self) -> None:
        like_java = self.settings.mode is Mode.PARITY
        for name in ("shedder", "placement", "filters", "weights"):
            part = with_arithmetic(getattr(self, name), like_java=like_java)
            object.__setattr__(self, name, part)

    def round(
        self,
        view: ClusterView,
        memory: RoundMemory,
        rng: np.random.Generator,
        *,
        unowned: Sequence[BundleId] = (),
        session_doubtful: bool = False,
        draining: bool = True,
    ) -> Plan:
        """Return the moves to make now, and a reason for everything left alone.

        ``unowned`` bundles are placed first, then draining brokers are emptied, then
        the shedder's offers are weighed. With ``session_doubtful`` (the leader may no longer
        lead) nothing is decided. ``draining`` is False if draining brokers are emptied between
        the rounds.
        """
        memory = memory.following(view, self.settings.cool_down_s)
        if session_doubtful:
            return Plan(moves=(), refusals=(Refusal("", Reason.SESSION_DOUBTFUL),), memory=memory)
        view = self._settled(view, memory)
        if isinstance(self.placement, Watching):
            memory = replace(memory, placement=self.placement.watch(view, memory.placement))
        work = self._begin(view, memory, rng)
        most = self.settings.placements_per_round
        for bundle in unowned[:most]:
            work.place(bundle)
        work.refusals += [Refusal(bundle, Reason.ROUND_BUDGET) for bundle in unowned[most:]]
        if draining:
            work.drain()
        gate = closed_gate(view, self.settings, self.filters.max_report_age_s)
        shedder = memory.shedder
        if gate is None:
            shedder = self._shed(work, shedder)
        else:
            work.refusals.append(gate)
            if isinstance(self.shedder, Deciding):
                shedder = self.shedder.watch(work.view, shedder)
        return self._plan(work, replace(memory, shedder=shedder, placement=work.memory))

    def place(
        self,
        view: ClusterView,
        bundles: Iterable[BundleId],
        memory: RoundMemory,
        rng: np.random.Generator,
        *,
        leaving: Mapping[BundleId, BrokerId] = NONE_LEAVE,
        cause: Cause = Cause.UNOWNED,
    ) -> RoundWork:
        """Place bundles without an owner, between two rounds, each after those before.

        Or, with ``cause``, bundles that are ``leaving`` their owner, which cannot be chosen. A
        bundle that is already under way keeps its target.
        """
        work = self._begin(view, memory, rng)
        for bundle in bundles:
            if (target := work.view.moved.get(bundle)) is not None:
                work.moves.append(Move(bundle, None, target, Cause.UNOWNED))
            else:
                work.place(bundle, leaving=leaving.get(bundle), cause=cause)
        return work

    def weigher(self, view: ClusterView, memory: RoundMemory) -> Weigher | None:
        """Return the weigher of the next round, within the limits for all strategies.

        None if the shedder leaves weighing to the planner.
        """
        if not isinstance(self.shedder, Deciding):
            return None
        work = self._begin(self._settled(view, memory), memory, np.random.default_rng(0))
        return self.shedder.weigher(work.view, memory.shedder, work.limits())

    def due_early(self, view: ClusterView, memory: RoundMemory) -> bool:
        """Return whether the next round is worth while at once: a broker stands out.

        Not while bundles are under way, nor for strategies that count rounds.
        """
        if view.moved or closed_gate(view, self.settings, self.filters.max_report_age_s):
            return False
        weigher = self.weigher(view, memory)
        return weigher is not None and weigher.stands_out

    def optimality(
        self, view: ClusterView, memory: RoundMemory, moves: Iterable[Move] = ()
    ) -> Optimality | None:
        """Return the distance of the cluster from the best possible balance after ``moves``.

        It uses the costs and speeds that the shedder learned, if any.
        """
        to = {move.bundle: move.target for move in moves}
        return optimality_of(view, self._learned(memory), weights=self.weights, moves=to)

    def divided(self, view: ClusterView, memory: RoundMemory) -> Divided | None:
        """Return brokers' usage divided by bundle, with the same costs; None as `optimality`."""
        return divided(view, self._learned(memory), self.weights)

    def _learned(self, memory: RoundMemory) -> Learned | None:
        joint = memory.shedder.joint if isinstance(self.shedder, Deciding) else None
        return None if joint is None else joint.learned

    def _settled(self, view: ClusterView, memory: RoundMemory) -> ClusterView:
        """Return the view with resting bundles; in safe mode with moves under way completed."""
        resting = memory.resting(view.now_s, self.settings.cool_down_s)
        resting |= view.policies.staying
        if view.policies.refused:
            every, names = view.bundles.namespaces.items(), view.bundles.names
            held = (row for one, rows in every if view.policies.refusal(one) for row in rows)
            resting |= {names[row] for row in held if row < len(names)}
        view = replace(view, recently_moved=view.recently_moved | resting)
        if self.settings.mode is Mode.SAFE:
            view = settled(view, self.costs(memory.shedder))
        return view

    def _begin(self, view: ClusterView, memory: RoundMemory, rng: np.random.Generator) -> RoundWork:
        moved = memory.moves_within_hour(view.now_s)
        return RoundWork(
            view=view,
            settings=self.settings,
            placement=self.placement,
            filters=self.filters,
            cost=self.costs(memory.shedder),
            weights=self.weights,
            memory=replace(memory.placement, joint=memory.shedder.joint),
            rng=rng,
            moves_left_in_hour=self.settings.moves_per_hour - moved,
            steps=Steps(self.settings.steps_per_round),
        )

    def costs(self, memory: Memory) -> CostModel:
        """Return the costs used for projecting moves: the shedder's own costs, if it learns any."""
        if isinstance(self.shedder, Deciding):
            return self.shedder.costs(memory, self.cost)
        return self.cost

    def _shed(self, work: RoundWork, memory: Memory) -> Memory:
        if isinstance(self.shedder, Deciding):
            shed = self.shedder.decide(work.view, memory, work.limits())
            work.refusals += shed.refusals
            work.carry_out(shed.offers)
            return shed.memory
        shed = self.shedder.shed(work.view, memory)
        work.refusals += shed.refusals
        work.memory = replace(work.memory, planned=shed.memory.planned)
        work.weigh(shed.offers)
        return shed.memory

    def _plan(self, work: RoundWork, memory: RoundMemory) -> Plan:
        moves, refusals = tuple(work.moves), (*work.steps.used_up(work.view), *work.refusals)
        if self.settings.observe:
            return Plan(moves=(), refusals=refusals, memory=memory, observed=moves)
        now_s = work.view.now_s
        moved = [move for move in moves if move.source is not None]
        parties = {
            broker: now_s for move in moved for broker in (move.source, move.target) if broker
        }
        shed_at_s = {**memory.shedder.shed_at_s, **parties}
        memory = replace(
            memory,
            shedder=replace(memory.shedder, shed_at_s=shed_at_s),
            moved_at_s={**memory.moved_at_s, **dict.fromkeys((m.bundle for m in moved), now_s)},
        )
        return Plan(moves=moves, refusals=refusals, memory=memory)
