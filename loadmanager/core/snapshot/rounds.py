from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from loadmanager.core.averages import BundleAverages
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BundleStats, LoadReport, ResourceUsage
from loadmanager.core.load_tracker import ema
from loadmanager.core.plan import Move
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.projection import after_move, settled
from loadmanager.core.scores import RESOURCES, ResourceWeights
from loadmanager.core.snapshot.document import RunningLoad, Snapshot, running_load, view_of_snapshot

ROUND_INTERVAL_S: Final = 60.0
_SAMPLES_PER_ROUND: Final = 6
_HISTORY_FRACTION: Final = 0.9


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
    interval_s: float = ROUND_INTERVAL_S,
) -> tuple[Round, ...]:
    """Return ``count`` rounds of ``planner``, the first on the snapshot itself.

    Between two rounds every move is completed and every broker reports again: a moved bundle has
    the traffic that its former owner reported, and the cost computed by the planner.
    """
    rounds: list[Round] = []
    for _ in range(count):
        if rounds:
            snapshot = following(snapshot, rounds[-1], planner.weights, interval_s)
        view = view_of_snapshot(snapshot, planner.weights)
        plan = planner.round(view, snapshot.memory, rng, unowned=snapshot.unowned)
        before = settled(view, planner.cost)
        after = before
        for move in (*plan.moves, *plan.observed):
            after = after_move(after, planner.cost, move)
        rounds.append(Round(plan=plan, before=before, after=after))
    return tuple(rounds)


def following(
    snapshot: Snapshot, done: Round, weights: ResourceWeights, interval_s: float
) -> Snapshot:
    """Return the snapshot ``interval_s`` later, after all moves under way have completed."""
    arrived = dict(done.after.moved)
    reports = _moved(snapshot, arrived, done.after)
    placed = {move.bundle for move in done.moves}
    ago_s = snapshot.membership_changed_ago_s
    return replace(
        snapshot,
        taken_at_ms=snapshot.taken_at_ms + round(interval_s * 1000),
        reports=reports,
        averages=_averages(snapshot),
        running=_running(done.before, reports, weights),
        owners={**snapshot.owners, **arrived},
        in_flight={},
        unowned=tuple(bundle for bundle in snapshot.unowned if bundle not in placed),
        memory=done.plan.memory,
        membership_changed_ago_s=None if ago_s is None else ago_s + interval_s,
        departed_ago_s=tuple(left + interval_s for left in snapshot.departed_ago_s),
    )


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


def _averages(snapshot: Snapshot) -> Mapping[BundleId, BundleAverages]:
    found = dict(snapshot.averages or {})
    for report in snapshot.reports.values():
        for bundle, stats in report.bundles.items():
            averages = found.get(bundle, BundleAverages.supposed())
            for _ in range(_SAMPLES_PER_ROUND):
                averages = averages.add(stats)
            found[bundle] = averages
    return found


def _running(
    before: ClusterView, reports: Mapping[BrokerId, LoadReport], weights: ResourceWeights
) -> dict[BrokerId, RunningLoad]:
    found = {}
    for broker, report in reports.items():
        now, row = running_load(report, weights), before.row(broker)
        load, bytes_per_s = (
            float(before.brokers.load_ema[row]),
            float(before.brokers.bytes_ema[row]),
        )
        for _ in range(_SAMPLES_PER_ROUND):
            load = ema(load, now.load, _HISTORY_FRACTION)
            bytes_per_s = ema(bytes_per_s, now.bytes_per_s, _HISTORY_FRACTION)
        found[broker] = RunningLoad(load, bytes_per_s)
    return found
