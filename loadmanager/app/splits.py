"""Which bundles are to be split or merged: proposals, and why others stay as they are."""

from collections.abc import Iterable, Mapping

from loadmanager.app.adoption import Adoption
from loadmanager.app.parts import Parts
from loadmanager.app.task_controller import TaskController
from loadmanager.app.tuning import SplitPolicy, Tuning
from loadmanager.core.averages import Rates
from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskKind
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of
from loadmanager.core.orders import SplitOrder
from loadmanager.core.plan import Cause, Reason, Refusal
from loadmanager.core.splitting import Merge, find_splits
from loadmanager.core.tally import LoadTally
from loadmanager.ports import Conflict, MergeRefused, SplitRefused, Unavailable

_REST_S = 600.0


class Splits:
    """Proposes splits and merges, for one term."""

    def __init__(
        self,
        parts: Parts,
        tasks: TaskController,
        tally: LoadTally,
        tuning: Tuning,
        adoption: Adoption,
    ) -> None:
        self._parts = parts
        self._tasks = tasks
        self._tally = tally
        self._tuning = tuning
        self._adoption = adoption
        self._resting_until_s: dict[BundleId, float] = {}

    @property
    def _policy(self) -> SplitPolicy:
        return self._tuning.now.split_policy

    @property
    def rests_s(self) -> Mapping[BundleId, float]:
        """Until when bundles that could not be split are left whole, on this leader's clock."""
        now_s = self._parts.clock.monotonic_s()
        return {b: until_s for b, until_s in self._resting_until_s.items() if until_s > now_s}

    def inherit(self, rests_s: Mapping[BundleId, float]) -> None:
        """Leave whole what the former leader gave up splitting, for as long as it would have."""
        latest_s = self._parts.clock.monotonic_s() + _REST_S
        self._resting_until_s = {b: min(until_s, latest_s) for b, until_s in rests_s.items()}

    def gave_up(self, tasks: Iterable[BundleTask]) -> None:
        """Leave the bundles of splits that nobody carried out whole for a while."""
        self._rest(task.bundle for task in tasks if task.kind is TaskKind.SPLIT)

    async def look(self) -> tuple[Refusal, ...]:
        """Have bundles that are too large split, and return why others stay whole.

        Raises:
            CoordinationError: boundaries cannot be read, or the orders not be written.
        """
        if not self._policy.enabled:
            return ()
        reports = {
            broker: known.report.bundles
            for broker, known in self._parts.picture.loads.reports.items()
        }
        averages = self._tally.averages()

        def long_rates(bundle: BundleId) -> Rates | None:
            known = averages.get(bundle)
            return known.long.rates if known else None

        counts = await self._bundle_counts(b for bundles in reports.values() for b in bundles)
        found = find_splits(self._policy.rules, reports, long_rates, counts)
        due = [split.bundle for split in found.chosen if self._may_split(split.bundle)]
        most = self._policy.most_per_round
        order = SplitOrder(self._policy.algorithm)
        proposals = [
            self._split(bundle, order, Cause.OVERSIZED, AskedBy.BALANCING) for bundle in due[:most]
        ]
        if proposals:
            done = await self._tasks.dispatch(proposals)
            if done.too_large is not None:
                self._rest(done.refused)
        return (*found.refusals, *(Refusal(one, Reason.ROUND_BUDGET) for one in due[most:]))

    async def order(self, bundle: BundleId, order: SplitOrder) -> None:
        """Have one bundle split by its owner, because somebody asked.

        Raises:
            SplitRefused: nobody owns it, or it is about to be merged with another.
            CoordinationError, Deposed: as `TaskController.dispatch`.
        """
        task = self._tasks.tasks.of(bundle)
        if task is not None and task.kind is TaskKind.MERGE:
            raise SplitRefused(f"{bundle} is being merged with its neighbour")
        proposal = self._split(bundle, order, Cause.REQUESTED, AskedBy.PEOPLE)
        await self._dispatch(proposal)

    async def merge(self, both: Merge, target: BrokerId) -> None:
        """Have both bundles go to ``target``, to be merged there; raises as `order`."""
        proposal = BundleTask(
            kind=TaskKind.MERGE,
            bundles=both.halves,
            source=None,
            target=target,
            cause=Cause.REQUESTED,
            asked_by=AskedBy.PEOPLE,
            planned=self._planned(both.halves),
            splits=both.orders(),
        )
        await self._dispatch(proposal)

    def owners(self, both: Merge) -> dict[BundleId, BrokerId]:
        """Return the owner of each half, with which nothing is under way.

        Raises:
            MergeRefused: one of them has no owner.
            Conflict: one is being split or merged, or is on its way to another broker.
        """
        owners: dict[BundleId, BrokerId] = {}
        for half in both.halves:
            order = self._tasks.splits.get(half)
            if order is not None:
                raise Conflict(f"{half} is ordered to {order.algorithm} already; wait for that")
            holding = self._parts.picture.live_owner(half)
            planned = self._tasks.assigned.get(half)
            owner = holding.broker if holding else None
            if planned not in {None, owner}:
                raise Conflict(f"{half} is on its way to {planned}; wait until it is there")
            if owner is None:
                raise MergeRefused(f"nobody owns {half} now; look one of its topics up first")
            owners[half] = owner
        return owners

    async def _dispatch(self, proposal: BundleTask) -> None:
        found = await self._tasks.dispatch([proposal])
        if found.too_large is not None:
            raise found.too_large
        for bundle, why in found.refused.items():
            raise Unavailable(f"{proposal.kind.value} of {bundle} was not ordered: {why}")

    def _split(
        self, bundle: BundleId, order: SplitOrder, cause: Cause, asked_by: AskedBy
    ) -> BundleTask:
        planned = self._planned([bundle])
        holding = self._parts.picture.live_owner(bundle)
        owner = planned.get(bundle) or (holding.broker if holding else None)
        if owner is None:
            raise SplitRefused(f"nobody owns {bundle} now; look one of its topics up first")
        return BundleTask(
            kind=TaskKind.SPLIT,
            bundles=(bundle,),
            source=owner,
            target=owner,
            cause=cause,
            asked_by=asked_by,
            planned=planned,
            splits={bundle: order},
        )

    def _planned(self, bundles: Iterable[BundleId]) -> dict[BundleId, BrokerId]:
        assigned = self._tasks.assigned
        return {bundle: assigned[bundle] for bundle in bundles if bundle in assigned}

    def _may_split(self, bundle: BundleId) -> bool:
        """Say whether nothing else is under way with it, and it may be tried (again)."""
        holding = self._parts.picture.owners.get(bundle)
        settled = holding is not None and holding.broker == self._tasks.assigned.get(bundle)
        rested = self._parts.clock.monotonic_s() >= self._resting_until_s.get(bundle, 0.0)
        return settled and rested and self._tasks.tasks.of(bundle) is None

    def _rest(self, bundles: Iterable[BundleId]) -> None:
        until_s = self._parts.clock.monotonic_s() + _REST_S
        self._resting_until_s |= dict.fromkeys(bundles, until_s)

    async def _bundle_counts(self, bundles: Iterable[BundleId]) -> dict[Namespace, int]:
        counts: dict[Namespace, int] = {}
        for namespace in {namespace_of(bundle) for bundle in bundles}:
            boundaries = await self._adoption.boundaries(namespace)
            if boundaries is not None:
                counts[namespace] = len(boundaries.bundles)
        return counts
