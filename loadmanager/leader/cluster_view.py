import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from loadmanager.common.cluster_loads import KnownLoads
from loadmanager.common.constraints import Constraints
from loadmanager.common.context import Context
from loadmanager.core.averages import BundleAverages
from loadmanager.core.balancing import Balancing, steered
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.plan import Move
from loadmanager.core.planner import Planner
from loadmanager.core.policies import Policies
from loadmanager.core.round_memory import RoundMemory
from loadmanager.leader.harmful_reports import HarmfulReports
from loadmanager.leader.history_recorder import HistoryRecorder
from loadmanager.leader.sight import Sight
from loadmanager.leader.task_controller import TaskController
from loadmanager.leader.untaken_orders import UntakenOrders

REPORTS_A_TURN: Final = 8
"""How many reports are taken in one after the other in a turn of the event loop: 0.7 ms with 100
bundles each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The view and memory of the leader of ``epoch`` at one time, on its own clock.

    ``unowned`` are the bundles about to be placed, ``left_out`` the brokers excluded from
    decisions, with the error that their report caused. ``planner`` makes the decisions, as far
    as ``balancing`` permits.
    """

    epoch: int
    view: ClusterView
    averages: Mapping[BundleId, BundleAverages]
    memory: RoundMemory
    planner: Planner
    balancing: Balancing
    unowned: tuple[BundleId, ...]
    left_out: Mapping[BrokerId, str] = field(default_factory=dict)

    @property
    def steered(self) -> Planner:
        return steered(self.planner, self.balancing.mode)


@dataclass(slots=True, eq=False)
class ViewBuilder:
    context: Context
    tasks: TaskController
    constraints: Constraints
    tracker: LoadTracker
    recorder: HistoryRecorder
    harmful: HarmfulReports
    untaken: UntakenOrders
    _taken: dict[BrokerId, KnownLoads] = field(default_factory=dict, init=False)

    def take_reports(self) -> None:
        for _broker in self._take_changed():
            pass
        reports = self.context.cluster_state.loads.reports.keys() - self.harmful.brokers
        for broker in self._taken.keys() - reports:
            del self._taken[broker]
            self.tracker.forget(broker, self.context.clock.monotonic_s())
            self.recorder.forgot(broker)

    async def take_reports_in_turns(self) -> None:
        """Do as `take_reports`, and let other tasks of the event loop run meanwhile."""
        for number, _broker in enumerate(self._take_changed(), 1):
            if number % REPORTS_A_TURN == 0:
                await asyncio.sleep(0)
        self.take_reports()

    def _take_changed(self) -> Iterator[BrokerId]:
        """Add the reports that were not taken yet, and yield the broker of each.

        Between two of them others may be read, or taken by another caller.
        """
        self.harmful.current()  # Brokers that reported again are not left out any more.
        reports = self.context.cluster_state.loads.reports
        for broker in list(reports):
            known = reports.get(broker)
            taken = known is self._taken.get(broker)
            if known is None or taken or broker in self.harmful.brokers:
                continue
            self._taken[broker] = known
            self.tracker.report(known.report, known.seen_at_s)
            self.recorder.took(broker, known.report.reported_at_ms)
            yield broker

    @property
    def policies(self) -> Policies:
        return self.constraints.policies

    def view(self, afresh: Collection[BundleId] = ()) -> ClusterView:
        """Return the current view; bundles to be placed ``afresh`` count as unowned."""
        sight = self.sight()
        ordered = sight.assigned
        if afresh:
            ordered = {bundle: to for bundle, to in ordered.items() if bundle not in afresh}
        return replace(sight, assigned=ordered).view()

    def sight(self) -> Sight:
        self.take_reports()
        return Sight(
            now_s=self.context.clock.monotonic_s(),
            tally=self.tracker.tally(),
            assigned=dict(self.tasks.assigned),
            policies=self.constraints.policies,
            passed_over=self.untaken.passed_over,
        )

    def outdated(self, sight: Sight, moves: Iterable[Move]) -> Mapping[BundleId, str]:
        """Return the moves decided on ``sight`` whose target can no longer take them, and why.

        Changes of the bundles themselves are detected by the task controller.
        """
        brokers, began = self.context.cluster_state.brokers, sight.tally.started_at_ms
        unassignable = {*self.untaken.passed_over, *self.harmful.brokers}
        found: dict[BundleId, str] = {}
        for bundle, target in ((move.bundle, move.target) for move in moves):
            if target not in brokers:
                found[bundle] = f"{target} left meanwhile"
            elif brokers[target].registration.started_at_ms != began.get(target):
                found[bundle] = f"{target} restarted meanwhile"
            elif brokers[target].registration.draining:
                found[bundle] = f"{target} is draining now"
            elif target in unassignable:
                found[bundle] = f"{target} is assigned no bundles now"
        return found
