from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskKind
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.live_tasks import LiveTasks
from loadmanager.core.orders import OrderChanges, SplitOrder


@dataclass(slots=True)
class Dispatched:
    """Results of the proposals of one decider.

    ``ordered`` are the targets of bundles whose proposal is ordered or already carried out.
    ``rode`` is whether the additional operations of the same commit were written.
    """

    ordered: dict[BundleId, BrokerId] = field(default_factory=dict)
    refused: dict[BundleId, str] = field(default_factory=dict)
    tasks: list[BundleTask] = field(default_factory=list)
    too_large: Exception | None = None
    rode: bool = False


@dataclass(slots=True, kw_only=True)
class Arbitration:
    """Live tasks, none of them unconfirmed, standing orders and owners, and the changes to make."""

    tasks: LiveTasks
    assigned: Mapping[BundleId, BrokerId]
    owner: Callable[[BundleId], BrokerId | None]
    most_per_broker: int
    now_s: float
    _to: dict[BundleId, BrokerId] = field(default_factory=dict)
    _splits: dict[BundleId, SplitOrder | None] = field(default_factory=dict)
    _under_way: Counter[BrokerId] = field(default_factory=Counter)

    @property
    def changes(self) -> OrderChanges:
        return OrderChanges(self._to, self._splits)

    def admit(self, proposals: Sequence[BundleTask]) -> Dispatched:
        """Turn the proposals of one decider into tasks, except those that something prevents.

        Call it for the deciders in order of precedence, highest first.
        """
        found = Dispatched()
        for proposal in map(self._merged, proposals):
            if self._stands(proposal):
                found.ordered |= dict.fromkeys(proposal.bundles, proposal.target)
                if proposal.asked_by is AskedBy.PEOPLE:
                    self._change(proposal)  # Rewriting it repairs a damaged order.
            elif (why := self._obstacle(proposal)) is not None:
                found.refused |= dict.fromkeys(proposal.bundles, why)
            else:
                self._change(proposal)
                task = self.tasks.admit(proposal, self.now_s)
                self._under_way.update(task.parties)
                found.tasks.append(task)
        return found

    def _merged(self, proposal: BundleTask) -> BundleTask:
        """Return the proposal with the current owner as its source, and with any pending split.

        If a bundle is moved while a split is pending, its next owner makes the split.
        """
        bundle = proposal.bundles[0]
        proposal = replace(proposal, source=self.owner(bundle))
        task = self.tasks.of(bundle)
        if task is None or task.kind is not TaskKind.SPLIT or proposal.splits:
            return proposal
        return replace(proposal, kind=TaskKind.SPLIT, splits=task.splits)

    def _stands(self, proposal: BundleTask) -> bool:
        bundle, target = proposal.bundles[0], proposal.target
        task = self.tasks.of(bundle)
        if task is not None:
            wanted = (proposal.kind, target, proposal.splits)
            return (task.kind, task.target, task.splits) == wanted
        there = self.owner(bundle) == target == self.assigned.get(bundle)
        return there and not proposal.splits

    def _obstacle(self, proposal: BundleTask) -> str | None:
        obeyed = proposal.asked_by is AskedBy.PEOPLE and not proposal.splits
        for bundle in proposal.bundles:
            if bundle in self._to:
                return "something with more right is ordered for it at the same moment"
            planned, before = self.assigned.get(bundle), proposal.planned.get(bundle)
            if planned is None and before is not None:
                return "it was split, merged or deleted meanwhile"
            if not obeyed and planned != before:
                return f"it was ordered to {planned} meanwhile"
        return self.tasks.obstacle(proposal, self.most_per_broker, self._under_way)

    def _change(self, proposal: BundleTask) -> None:
        for bundle in proposal.bundles:
            task = self.tasks.of(bundle)
            if task is not None:
                # Keep the change admitted for the other half of a merge.
                self._splits = dict.fromkeys(task.splits) | self._splits
            self._to[bundle] = proposal.target
        self._splits |= proposal.splits
