"""Rounds as a leader decides them, on the views of any cluster.

Views come from a live cluster, a shadow, a snapshot, recorded history or a simulation. What is
decided on them, and what strategies remember from one decision to the next, is the same.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.duty_moves import Duties, DutyMoves
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BundleStats, LoadReport, ResourceUsage
from loadmanager.core.memory import RoundMemory
from loadmanager.core.plan import Cause, Move, Reason, Refusal, Steps
from loadmanager.core.planner import NONE_LEAVE, Plan, Planner
from loadmanager.core.policies import Policies
from loadmanager.core.projection import after_move, settled
from loadmanager.core.scores import RESOURCES, ResourceWeights
from loadmanager.core.snapshot.document import Snapshot, tracker_of, view_of_snapshot


@dataclass(frozen=True, eq=False, slots=True)
class Decided:
    """A round: what the planner decided on the view, with ``urgent`` duties under way in it.

    ``memory`` is that before the round.
    """

    planner: Planner
    view: ClusterView
    memory: RoundMemory
    plan: Plan
    urgent: tuple[Move, ...] = ()
    counted: tuple[Move, ...] = ()

    @property
    def moves(self) -> tuple[Move, ...]:
        return (*self.urgent, *self.plan.moves, *self.counted)


@dataclass(slots=True)
class Playback:
    """Decides with one planner, whose strategies remember their former decisions.

    Draining brokers are emptied between rounds (`place`), unless a `round` is asked to do it.
    """

    planner: Planner
    rng: np.random.Generator
    memory: RoundMemory = field(default_factory=RoundMemory)

    def round(self, view: ClusterView, *, draining: bool = False, **given: Any) -> Plan:
        """Return the decision of one round; it takes the same as `Planner.round`."""
        plan = self.planner.round(view, self.memory, self.rng, draining=draining, **given)
        self.memory = plan.memory
        return plan

    def round_with_duties(
        self,
        view: Callable[[Policies, Mapping[BundleId, BrokerId]], ClusterView],
        policies: Policies,
        duties: Duties,
        *,
        rests: str = "",
        eases: bool = True,
    ) -> Decided:
        """Return the decision of a round in which duties precede the strategy's moves.

        ``view`` returns the cluster with bundles under way: the strategy sees bundles where
        policies want them. Last are bundles that are counted; if nothing else moves and it
        ``eases``, one that moves late. ``rests`` is why the strategy moves nothing, "" if it may.
        Duties take at most a quarter of the steps of a round.
        """
        steps, whole = Steps(self.planner.settings.steps_per_round // 4), view(policies, NONE_LEAVE)
        due = DutyMoves(whole, duties, steps)
        left = duties.most - len(due.urgent)
        under_way = {move.bundle: move.target for move in due.urgent}
        settings = self.planner.settings
        rest = settings.steps_per_round - steps.spent.total()

        def decided(stay: Collection[BundleId], most: int) -> Decided:
            moves = min(settings.moves_per_round, most)
            limited = replace(settings, moves_per_round=moves, steps_per_round=rest)
            planner = replace(self.planner, settings=limited)
            there = view(replace(policies, staying=policies.staying.union(stay)), under_way)
            if rests:
                refusal = Refusal("", Reason.COOLING_DOWN, rests)
                plan = Plan(moves=(), refusals=(refusal,), memory=self.memory)
            else:
                plan = planner.round(there, self.memory, self.rng, draining=False)
            plan = replace(plan, refusals=(*steps.used_up(whole), *plan.refusals))
            return Decided(planner, there, self.memory, plan, due.urgent)

        moving = [move.bundle for move in (*due.urgent, *due.counted)]
        found = decided({*duties.late, *moving}, left)
        if eases and not (found.plan.moves or moving) and due.worth_their_price:
            found = decided(set(duties.late) - due.worth_their_price, min(left, 1))
        return replace(found, counted=due.counted[: max(left - len(found.plan.moves), 0)])

    def place(
        self,
        view: ClusterView,
        bundles: Iterable[BundleId],
        leaving: Mapping[BundleId, BrokerId] = NONE_LEAVE,
        cause: Cause = Cause.UNOWNED,
    ) -> tuple[list[Move], dict[BundleId, tuple[Refusal, ...]]]:
        """Return moves of bundles to next owners between two rounds, and why others have none.

        No bundle goes to the broker that it is ``leaving``.
        """
        work = self.planner.place(
            view, bundles, self.memory, self.rng, leaving=leaving, cause=cause
        )
        if work.refusals or work.view is not view:
            self.memory = replace(self.memory, placement=work.memory)
        return work.moves, {BundleId(one.subject): (one,) for one in work.refusals}


_INTERVAL_S: Final = 60.0
_SAMPLES_PER_ROUND: Final = 6


@dataclass(frozen=True, eq=False, kw_only=True)
class Round:
    """One round: its plan, and the cluster before and (projected) after all moves.

    Bundles under way before the round count on their targets in both views. ``after`` also
    includes moves that were only observed.
    """

    plan: Plan
    before: ClusterView
    after: ClusterView

    @property
    def moves(self) -> tuple[Move, ...]:
        return (*self.plan.moves, *self.plan.observed)


def run_rounds(
    snapshot: Snapshot,
    planner: Planner,
    rng: np.random.Generator,
    count: int = 1,
) -> Iterator[Round]:
    """Yield ``count`` rounds of ``planner``, the first on the snapshot itself.

    Between two rounds every move is completed and every broker reports again: a moved bundle has
    the traffic that its former owner reported, and the cost computed by the planner.
    """
    playback = Playback(planner, rng, snapshot.memory)
    done: Round | None = None
    for _ in range(count):
        if done is not None:
            snapshot = following(snapshot, done, planner.weights)
        view = view_of_snapshot(snapshot, planner.weights)
        plan = playback.round(view, unowned=snapshot.unowned, draining=True)
        before = settled(view, planner.cost)
        after = before
        for move in (*plan.moves, *plan.observed):
            after = after_move(after, planner.cost, move)
        done = Round(plan=plan, before=before, after=after)
        yield done


def following(snapshot: Snapshot, done: Round, weights: ResourceWeights) -> Snapshot:
    """Return the snapshot a minute later, after all moves under way have completed."""
    arrived = dict(done.after.moved)
    placed = {move.bundle for move in done.moves}
    ago_s = snapshot.membership_changed_ago_s
    later = replace(
        snapshot,
        taken_at_ms=snapshot.taken_at_ms + round(_INTERVAL_S * 1000),
        reports=_moved(snapshot, arrived, done.after),
        owners={**snapshot.owners, **arrived},
        in_flight={},
        unowned=tuple(bundle for bundle in snapshot.unowned if bundle not in placed),
        membership_changed_ago_s=None if ago_s is None else ago_s + _INTERVAL_S,
        departed_ago_s=tuple(left + _INTERVAL_S for left in snapshot.departed_ago_s),
    )
    tracker = tracker_of(snapshot, weights)
    for broker, report in later.reports.items():
        tracker.report(report, later.now_s - later.age_s.get(broker, 0.0))
    for _ in range(_SAMPLES_PER_ROUND):
        tracker.sample()
    return replace(later, averages=tracker.averages(), running=tracker.running())


def _moved(
    snapshot: Snapshot, arrived: Mapping[BundleId, BrokerId], after: ClusterView
) -> dict[BrokerId, LoadReport]:
    stats = {
        bundle: one
        for report in snapshot.reports.values()
        for bundle, one in report.bundles.items()
        if bundle in arrived
    }
    reports = {}
    for broker, report in snapshot.reports.items():
        bundles = {b: one for b, one in report.bundles.items() if arrived.get(b, broker) == broker}
        for bundle, target in arrived.items():
            if target == broker:
                bundles.setdefault(bundle, stats.get(bundle, BundleStats()))
        reports[broker] = _with_usage(report, after, bundles)
    return reports


def _with_usage(
    report: LoadReport, after: ClusterView, bundles: Mapping[BundleId, BundleStats]
) -> LoadReport:
    usage = after.brokers.usage[after.row(report.broker)].tolist()
    resources: dict[str, Any] = {}
    for name, used in zip(RESOURCES, usage, strict=True):
        former: ResourceUsage | None = getattr(report, name)
        resources[name] = None if former is None else replace(former, usage=used, mean=None)
    return replace(report, bundles=bundles, **resources)
