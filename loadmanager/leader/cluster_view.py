"""The leader's view of the cluster: what was reported, and what is ordered."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from loadmanager.common.cluster_loads import KnownLoads
from loadmanager.common.constraints import Constraints
from loadmanager.common.context import Context
from loadmanager.core.averages import BundleAverages
from loadmanager.core.balancing import Balancing, steered
from loadmanager.core.cluster import ClusterView
from loadmanager.core.cost import CostDocument
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the leader of ``epoch`` sees and remembers at one moment, by its own clock.

    ``unowned`` are the bundles it is about to place, ``left_out`` the brokers that it decides
    without, with the error that their report caused. ``planner`` is what it decides
    with, as far as ``balancing`` lets it. ``costs`` is the cost model that is published.
    """

    epoch: int
    view: ClusterView
    averages: Mapping[BundleId, BundleAverages]
    memory: RoundMemory
    planner: Planner
    balancing: Balancing
    costs: CostDocument | None
    unowned: tuple[BundleId, ...]
    left_out: Mapping[BrokerId, str] = field(default_factory=dict)

    @property
    def steered(self) -> Planner:
        """The planner as far as it may go by itself now."""
        return steered(self.planner, self.balancing.mode)


@dataclass(slots=True, eq=False)
class ViewBuilder:
    """Keeps the tally of one term up to date with the reports in the picture."""

    context: Context
    tasks: TaskController
    constraints: Constraints
    tracker: LoadTracker
    recorder: HistoryRecorder
    harmful: HarmfulReports
    untaken: UntakenOrders
    _taken: dict[BrokerId, KnownLoads] = field(default_factory=dict, init=False)

    def take_reports(self) -> None:
        """Count what was reported since the last time; forget brokers that left or are left out."""
        left_out = self.harmful.current()
        known_reports = self.context.cluster_state.loads.reports
        reports = {name: known for name, known in known_reports.items() if name not in left_out}
        for broker, known in reports.items():
            if self._taken.get(broker) is not known:
                self._taken[broker] = known
                self.tracker.report(known.report, known.seen_at_s)
                self.recorder.took(broker, known.report.reported_at_ms)
        for broker in self._taken.keys() - reports.keys():
            del self._taken[broker]
            self.tracker.forget(broker, self.context.clock.monotonic_s())
            self.recorder.forgot(broker)

    @property
    def policies(self) -> Policies:
        """What operators configured, as far as it was read."""
        return self.constraints.policies

    def view(self, afresh: Collection[BundleId] = ()) -> ClusterView:
        """Return the cluster now; what is to be placed ``afresh`` counts as unowned."""
        sight = self.sight()
        ordered = sight.assigned
        if afresh:
            ordered = {bundle: to for bundle, to in ordered.items() if bundle not in afresh}
        return replace(sight, assigned=ordered).view()

    def sight(self) -> Sight:
        """Return what a view of now is made of."""
        self.take_reports()
        return Sight(
            now_s=self.context.clock.monotonic_s(),
            tally=self.tracker.tally(),
            assigned=dict(self.tasks.assigned),
            policies=self.constraints.policies,
            passed_over=self.untaken.passed_over,
        )

    def outdated(self, sight: Sight, moves: Iterable[Move]) -> Mapping[BundleId, str]:
        """Return which moves decided on ``sight`` their target cannot be given any more, and why.

        What became of the bundles themselves the task controller finds.
        """
        brokers, began = self.context.cluster_state.brokers, sight.tally.started_at_ms
        given_nothing = {*self.untaken.passed_over, *self.harmful.brokers}
        found: dict[BundleId, str] = {}
        for bundle, target in ((move.bundle, move.target) for move in moves):
            if target not in brokers:
                found[bundle] = f"{target} left meanwhile"
            elif brokers[target].registration.started_at_ms != began.get(target):
                found[bundle] = f"{target} restarted meanwhile"
            elif brokers[target].registration.draining:
                found[bundle] = f"{target} is draining now"
            elif target in given_nothing:
                found[bundle] = f"{target} is given nothing now"
        return found
