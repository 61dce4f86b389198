from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.filters import FINDING, Eligibility, Filters, Limits, RestrictedTargets
from loadmanager.core.ids import BrokerId, BundleId, namespace_of
from loadmanager.core.joint.learning import Learned
from loadmanager.core.joint.weighing import Weigher
from loadmanager.core.memory import Memory, RoundMemory
from loadmanager.core.optimality import Divided, Optimality, divided, optimality_of
from loadmanager.core.placement import LeastLongTermMessageRate, Placement, Watching, choose
from loadmanager.core.plan import Cause, Move, Offer, Reason, Refusal, Steps
from loadmanager.core.planner_settings import Mode, PlannerSettings
from loadmanager.core.projection import (
    CostModel,
    TrafficShare,
    after_move,
    loads,
    loads_with,
    settled,
)
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


_DOMINANT_FRACTION = 0.5
"""A bundle with more than this share of its broker's load cannot be balanced by moving it."""


@dataclass(slots=True, kw_only=True)
class RoundWork:
    """The projected view and the decisions so far.

    ``memory`` is the placement's. ``moves_left_in_hour`` is the rest of the hourly budget.
    """

    planner: "Planner"
    view: ClusterView
    cost: CostModel
    memory: Memory
    rng: np.random.Generator
    moves_left_in_hour: int = 0
    moves: list[Move] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    shed_moves: int = 0
    shed_bytes_per_s: float = 0.0
    in_flight: Counter[BrokerId] = field(default_factory=Counter)
    steps: Steps = field(default_factory=Steps)

    def place(
        self,
        bundle: BundleId,
        *,
        leaving: BrokerId | None = None,
        cause: Cause = Cause.UNOWNED,
    ) -> Move | None:
        """Assign a bundle to the broker that the placement chooses.

        The bundle has no owner, or is ``leaving`` a broker, which cannot be chosen.
        """
        row = None if leaving is None else self.view.brokers.index.get(leaving)
        eligible = self._eligible(bundle, row)
        mask = eligible.mask
        if row is not None:
            mask[row] = False
        target = self._choose(np.flatnonzero(mask), bundle)
        if target is None:
            self._refuse(bundle, Reason.NO_CANDIDATE, _why_none(eligible))
            return None
        source = None if row is None else leaving
        return self._move(Offer(bundle, source or target, cause), source, target)

    def drain(self) -> None:
        left = self.planner.settings.drain_moves_per_round
        draining = self.view.brokers.draining
        for row in np.flatnonzero(draining).tolist():
            source = self.view.brokers.names[row]
            for bundle in self.view.bundles_of(source):
                at = self.view.bundles.row(bundle)
                if bundle in self.view.moved or (at is not None and self.view.bundles.system[at]):
                    continue
                if left == 0 or self.steps.left <= 0:
                    self._refuse(bundle, Reason.ROUND_BUDGET, f"draining {source}")
                    return
                left -= self.place(bundle, leaving=source, cause=Cause.DRAINING) is not None

    def weigh(self, offers: Iterable[Offer]) -> None:
        """Decide on a shedder's offers, in order. Call it once per round."""
        self._count_under_way()
        rows = np.flatnonzero(self.view.age_s > self.planner.filters.max_report_age_s)
        stale = frozenset(self.view.brokers.names[row] for row in rows.tolist())
        for offer in offers:
            reason = self._forbidden(offer, stale) or self._budget(offer)
            if reason is not None:
                self._refuse(offer.bundle, reason, f"on {offer.source}")
            elif self.planner.settings.mode is Mode.SAFE:
                self._improve(offer)
            else:
                self._obey(offer)

    def limits(self) -> Limits:
        view, filters = self.view, self.planner.filters
        movable = np.ones(len(view.bundles.known), dtype=np.bool_)
        for namespace in self.planner.settings.excluded_namespaces:
            rows = [row for row in view.bundles.namespaces.get(namespace, ()) if row < len(movable)]
            movable[rows] = False
        fresh = view.age_s <= filters.max_report_age_s
        movable &= fresh[view.owned.listed_by] & (view.owned.listed_by >= 0)
        moves = self.planner.settings.moves_per_round
        if self.planner.settings.mode is Mode.SAFE:
            moves = min(moves, max(self.moves_left_in_hour, 0))
        return Limits(
            gives=fresh & ~view.brokers.draining,
            takes=filters.eligible(view, None).mask,
            movable=movable,
            moves=moves,
            steps=self.steps,
            restricted=RestrictedTargets(view, filters) if filters.tells_apart(view) else None,
        )

    def carry_out(self, offers: Iterable[Offer]) -> None:
        for offer, target in [(one, one.target) for one in offers if one.target is not None]:
            self._shed(offer, target)

    def _count_under_way(self) -> None:
        """Count the moves under way from before this round as well.

        Only the shedder's budgets need it: for placements between two rounds it would be wasted,
        ten thousand times in a cold start.
        """
        own = {move.bundle for move in self.moves}
        for bundle, target in self.view.moved.items():
            if bundle in own:
                continue
            self.in_flight[target] += 1
            source = self.view.listed_owner(bundle)
            if source is not None:
                self.in_flight[source] += 1

    def _forbidden(self, offer: Offer, stale: frozenset[BrokerId]) -> Reason | None:
        if offer.bundle in self.view.moved:
            return Reason.IN_FLIGHT
        if self.steps.left <= 0:
            return Reason.WORK_BUDGET
        excluded = self.planner.settings.excluded_namespaces
        if excluded and namespace_of(offer.bundle) in excluded:
            return Reason.NAMESPACE_EXCLUDED
        return Reason.REPORT_STALE if offer.source in stale else None

    def _budget(self, offer: Offer) -> Reason | None:
        settings = self.planner.settings
        if settings.mode is not Mode.SAFE:
            return None
        if self.shed_moves >= settings.moves_per_round:
            return Reason.ROUND_BUDGET
        if self.shed_moves >= self.moves_left_in_hour:
            return Reason.HOUR_BUDGET
        if self.in_flight[offer.source] >= settings.in_flight_per_broker:
            return Reason.BROKER_BUDGET
        wanted = self.shed_bytes_per_s + self._bytes_per_s(offer.bundle)
        if self.shed_moves and wanted > settings.bytes_per_s_per_round:
            return Reason.TRAFFIC_BUDGET
        return None

    def _obey(self, offer: Offer) -> None:
        """Carry out an offer as Pulsar does: with the planned target, else the placement's."""
        eligible = self._eligible(offer.bundle, self.view.row(offer.source))
        planned = None if offer.target is None else self.view.brokers.index.get(offer.target)
        if planned is not None and eligible.mask[planned]:
            target = offer.target
        else:
            target = self._choose(eligible.rows, offer.bundle)
        if target is None:
            self._refuse(offer.bundle, Reason.NO_CANDIDATE, _why_none(eligible))
        elif target == offer.source:
            self._refuse(offer.bundle, Reason.SAME_BROKER, f"{target} is its best place")
        else:
            self._shed(offer, target)

    def _improve(self, offer: Offer) -> None:
        """Carry out an offer if some broker would stay below the source's current load."""
        if not self.view.short_rates(offer.bundle).any():
            self._refuse(offer.bundle, Reason.NO_IMPROVEMENT, f"on {offer.source}, without traffic")
            return
        eligible = self._eligible(offer.bundle, self.view.row(offer.source))
        mask = eligible.mask
        mask[self.view.row(offer.source)] = False
        rows = self._with_room(np.flatnonzero(mask))
        if not len(rows):
            self._refuse(offer.bundle, Reason.NO_CANDIDATE, _why_none(eligible))
            return
        better = self._better(offer, rows)
        if not len(better):
            return
        planned = None if offer.target is None else self.view.brokers.index.get(offer.target)
        if planned is not None and planned in better:
            self._shed(offer, self.view.brokers.names[planned])
            return
        target = self._choose(better, offer.bundle)
        if target is None:
            self._refuse(offer.bundle, Reason.NO_CANDIDATE, "the placement takes none of them")
        else:
            self._shed(offer, target)

    def _eligible(self, bundle: BundleId, row: int | None) -> Eligibility:
        if row is not None:
            self.steps.spend(row, self.planner.filters.steps(self.view, bundle), FINDING)
        return self.planner.filters.eligible(self.view, bundle)

    def _with_room(self, rows: Indices) -> Indices:
        full = [
            self.view.brokers.index[broker]
            for broker, count in self.in_flight.items()
            if count >= self.planner.settings.in_flight_per_broker
        ]
        return rows[~np.isin(rows, full)] if full else rows

    def _better(self, offer: Offer, rows: Indices) -> Indices:
        """Return the rows that would stay below the source's load by the margin, or refuse."""
        view, row = self.view, self.view.row(offer.source)
        before = float(loads(view, self.planner.weights)[row])
        usage = self.cost.usage(view, offer.bundle, offer.source)
        msgs_per_s = float(view.short_rates(offer.bundle)[:2].sum())
        there = self.cost.elsewhere(view, offer.bundle, offer.source, usage, rows)
        after = loads_with(view, self.planner.weights, rows, there, msgs_per_s)
        better = rows[after + self.planner.settings.margin <= before]
        if len(better):
            return better
        rest = float(
            loads_with(view, self.planner.weights, np.array([row]), -usage, -msgs_per_s)[0]
        )
        detail = f"{offer.source} stands at {before:.3f}, without it at {rest:.3f}"
        if before - rest > _DOMINANT_FRACTION * before:
            self._refuse(offer.bundle, Reason.UNBALANCEABLE, f"{detail}: split it")
        else:
            self._refuse(offer.bundle, Reason.NO_IMPROVEMENT, detail)
        return better

    def _choose(self, rows: Indices, bundle: BundleId) -> BrokerId | None:
        ranking = self.planner.placement.rank(self.view, rows, bundle, self.memory)
        self.memory = ranking.memory
        row = choose(ranking.best, self.rng)
        return None if row is None else self.view.brokers.names[row]

    def _shed(self, offer: Offer, target: BrokerId) -> None:
        self.shed_moves += 1
        self.shed_bytes_per_s += self._bytes_per_s(offer.bundle)
        self._move(offer, offer.source, target)

    def _move(self, offer: Offer, source: BrokerId | None, target: BrokerId) -> Move:
        move = Move(offer.bundle, source, target, offer.cause)
        self.view = after_move(self.view, self.cost, move)
        for broker in (source, target):
            if broker is not None:
                self.in_flight[broker] += 1
        self.moves.append(move)
        return move

    def _refuse(self, bundle: BundleId, reason: Reason, detail: str) -> None:
        self.refusals.append(Refusal(bundle, reason, detail))

    def _bytes_per_s(self, bundle: BundleId) -> float:
        return float(self.view.short_rates(bundle)[2:].sum())


def _why_none(eligible: Eligibility) -> str:
    reasons = Counter(refusal.reason for refusal in eligible.refusals())
    text = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return text or "no broker has room"


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
            planner=self,
            view=view,
            cost=self.costs(memory.shedder),
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
