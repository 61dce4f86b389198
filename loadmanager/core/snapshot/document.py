from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from loadmanager.core.averages import BundleAverages, Running
from loadmanager.core.bundles import Boundaries
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.load import LoadReport
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.memory import RoundMemory
from loadmanager.core.policies import NO_POLICIES, Policies
from loadmanager.core.scores import ResourceWeights, report_usage, weighted_max_with_memory

_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Choice:
    strategy: str
    settings: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """The leader's strategies and settings; None or empty if unknown."""

    shedder: Choice | None = None
    placement: Choice | None = None
    planner: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    filters: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A cluster at the wall-clock time ``taken_at_ms``.

    All times in ``memory`` are seconds on that clock. ``age_s`` is the age of each report, 0 if
    absent. ``averages`` and ``running`` (each broker's since its start) are None if not recorded:
    the reports then count as a single sample.

    ``owners`` are the locks and ``in_flight`` the orders that are not carried out yet;
    ``unowned`` bundles wait for a broker. ``boundaries``, unless empty, contain every namespace
    of these bundles. ``membership_changed_ago_s`` is None if no broker joined or left recently.
    ``left_out`` lists the entries left out by reading, with reasons.
    """

    taken_at_ms: int = 0
    cluster: str = ""
    epoch: int = 0
    reports: Mapping[BrokerId, LoadReport]
    age_s: Mapping[BrokerId, float] = field(default_factory=lambda: _NOTHING)
    boundaries: Mapping[Namespace, Boundaries] = field(default_factory=lambda: _NOTHING)
    owners: Mapping[BundleId, BrokerId] = field(default_factory=lambda: _NOTHING)
    in_flight: Mapping[BundleId, BrokerId] = field(default_factory=lambda: _NOTHING)
    unowned: tuple[BundleId, ...] = ()
    policies: Policies = NO_POLICIES
    memory: RoundMemory = field(default_factory=RoundMemory)
    departed_ago_s: tuple[float, ...] = ()
    in_force: InForce = field(default_factory=InForce)
    averages: Mapping[BundleId, BundleAverages] | None = None
    running: Mapping[BrokerId, Running] | None = None
    membership_changed_ago_s: float | None = None
    left_out: tuple[str, ...] = ()

    @property
    def now_s(self) -> float:
        return self.taken_at_ms / 1000.0


def view_of_snapshot(snapshot: Snapshot, weights: ResourceWeights | None = None) -> ClusterView:
    """Return the cluster as the leader saw it when the snapshot was taken.

    ``weights`` are for the heaviest bundles, and for the running load of brokers if the snapshot
    does not contain it.
    """
    now_s = snapshot.now_s
    view = tracker_of(snapshot, weights or ResourceWeights()).view(
        now_s, in_flight=snapshot.in_flight, policies=snapshot.policies
    )
    changed_ago_s = snapshot.membership_changed_ago_s
    return replace(
        view,
        membership_changed_s=float("-inf") if changed_ago_s is None else now_s - changed_ago_s,
        departures_s=tuple(now_s - ago_s for ago_s in snapshot.departed_ago_s),
    )


def tracker_of(snapshot: Snapshot, weights: ResourceWeights) -> LoadTracker:
    """Return the leader's load tracker with the reports and averages of the snapshot."""
    tracker, reports = LoadTracker(weights=weights), snapshot.reports
    running = snapshot.running
    if running is None:
        running = {broker: _running_load(report, weights) for broker, report in reports.items()}
    inherited = {
        broker: replace(running[broker], started_at_ms=report.started_at_ms)
        for broker, report in reports.items()
        if broker in running
    }
    tracker.inherit(inherited, {}, snapshot.now_s)
    for broker, report in reports.items():
        tracker.report(report, snapshot.now_s - snapshot.age_s.get(broker, 0.0))
    averages = snapshot.averages
    if averages is None:
        averages = {
            bundle: BundleAverages.supposed().add(stats)
            for report in reports.values()
            for bundle, stats in report.bundles.items()
        }
    tracker.seed(averages)
    return tracker


def _running_load(report: LoadReport, weights: ResourceWeights) -> Running:
    usage, limit = report_usage(report)
    score = weighted_max_with_memory(np.array(usage), np.array(limit), weights)
    return Running(float(score), report.totals.bytes_per_s)
