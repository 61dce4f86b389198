"""Which proposals become tasks now: by what stands at this instant, and by who has more right."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loadmanager.core.bundle_task import AskedBy, BundleTask, Proposal, TaskKind
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.live_tasks import LiveTasks
from loadmanager.core.order_changes import OrderChanges
from loadmanager.core.orders import SplitOrder


@dataclass(slots=True)
class Admitted:
    """What became of the proposals of one decider.

    ``tasks`` are to be ordered; ``standing`` is ordered or carried out already, each bundle
    with its target; ``refused`` gives way to something else, with the reason.
    """

    tasks: list[BundleTask] = field(default_factory=list)
    standing: dict[BundleId, BrokerId] = field(default_factory=dict)
    refused: dict[BundleId, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Arbitration:
    """One instant: the live tasks, the standing orders and the owners, and what is to change.

    Args:
        tasks: the live tasks; none of them is unconfirmed.
        assigned: the broker that is ordered to own each bundle.
        owner: returns the broker that has the lock of a bundle, None for none.
        most_per_broker: how many tasks drains and rounds may have with one broker.
        now_s: on the clock of the tasks.
    """

    tasks: LiveTasks
    assigned: Mapping[BundleId, BrokerId]
    owner: Callable[[BundleId], BrokerId | None]
    most_per_broker: int
    now_s: float
    _to: dict[BundleId, BrokerId] = field(default_factory=dict)
    _splits: dict[BundleId, SplitOrder | None] = field(default_factory=dict)
    _under_way: dict[BrokerId, int] = field(default_factory=dict)

    @property
    def changes(self) -> OrderChanges:
        """What all that was admitted changes in the standing orders."""
        return OrderChanges(self._to, self._splits)

    def admit(self, proposals: Sequence[Proposal]) -> Admitted:
        """Make tasks of the proposals of one decider, as far as nothing is in their way.

        To be called for the deciders with more right first.
        """
        admitted = Admitted()
        for proposal in proposals:
            self._admit(self._merged(proposal), admitted)
        return admitted

    def _admit(self, proposal: Proposal, admitted: Admitted) -> None:
        if self._stands(proposal):
            admitted.standing |= dict.fromkeys(proposal.bundles, proposal.target)
            if proposal.asked_by is AskedBy.PEOPLE:
                self._change(proposal)  # It is written again, which repairs what was spoilt.
            return
        why = self._obstacle(proposal)
        if why is not None:
            admitted.refused |= dict.fromkeys(proposal.bundles, why)
            return
        self._change(proposal)
        task = self.tasks.propose(proposal, self.now_s)
        for broker in task.parties:
            self._under_way[broker] = self._under_way.get(broker, 0) + 1
        admitted.tasks.append(task)

    def _merged(self, proposal: Proposal) -> Proposal:
        """Return the proposal as it is to be carried out: by the owner of now, with its split.

        A bundle that is moved while it is to be split is split by its next owner.
        """
        bundle = proposal.bundles[0]
        proposal = replace(proposal, source=self.owner(bundle))
        task = self.tasks.of(bundle)
        if task is None or task.kind is not TaskKind.SPLIT or proposal.splits:
            return proposal
        return replace(proposal, kind=TaskKind.SPLIT, splits=task.splits)

    def _stands(self, proposal: Proposal) -> bool:
        """Say whether what is proposed is under way, or carried out."""
        bundle, target = proposal.bundles[0], proposal.target
        task = self.tasks.of(bundle)
        if task is not None:
            wanted = (proposal.kind, target, proposal.splits)
            return (task.kind, task.target, task.splits) == wanted
        there = self.owner(bundle) == target == self.assigned.get(bundle)
        return there and not proposal.splits

    def _obstacle(self, proposal: Proposal) -> str | None:
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

    def _change(self, proposal: Proposal) -> None:
        for bundle in proposal.bundles:
            task = self.tasks.of(bundle)
            if task is not None:
                # What was admitted for the other half of a merge stays.
                self._splits = dict.fromkeys(task.splits) | self._splits
            self._to[bundle] = proposal.target
        self._splits |= proposal.splits
