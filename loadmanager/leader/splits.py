from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from loadmanager.agent.splits import parts_of
from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.config.strategies import split_rules_of
from loadmanager.core.averages import BundleAverages, supposed_of
from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskEvent, TaskKind
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import LoadManagerError, MalformedContent
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of, range_of
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.orders import OrderChanges, SplitOrder
from loadmanager.core.plan import Cause
from loadmanager.core.splitting.finder import find_splits
from loadmanager.core.splitting.merging import Merge, merged_by_order
from loadmanager.leader.decisions import Decider
from loadmanager.leader.task_controller import TaskController
from loadmanager.ports.lookup import Conflict, Unavailable, Unfit

log = structlog.get_logger()

_REST_S = 600.0


@dataclass(slots=True)
class _Found:
    boundaries: Mapping[Namespace, Boundaries]
    parts: dict[BundleId, tuple[BundleId, ...]] = field(default_factory=dict)
    whole: dict[BundleId, BundleId] = field(default_factory=dict)
    settled: dict[Namespace, frozenset[BundleId]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Splits:
    """Proposes splits and merges, and follows them; a split of ``unsplittable`` was impossible."""

    context: Context
    tasks: TaskController
    tracker: LoadTracker
    settings: RuntimeSettings
    decider: Decider
    unsplittable: Collection[BundleId] = ()
    _resting_until_s: dict[BundleId, float] = field(default_factory=dict, init=False)
    # Not versions: those of a recreated namespace start at 0 again.
    _checked: dict[Namespace, Boundaries] = field(default_factory=dict, init=False)
    _settled: dict[Namespace, frozenset[BundleId]] = field(default_factory=dict, init=False)

    @property
    def rests_s(self) -> Mapping[BundleId, float]:
        now_s = self.context.clock.monotonic_s()
        return {b: until_s for b, until_s in self._resting_until_s.items() if until_s > now_s}

    def inherit(self, rests_s: Mapping[BundleId, float]) -> None:
        latest_s = self.context.clock.monotonic_s() + _REST_S
        self._resting_until_s = {b: min(until_s, latest_s) for b, until_s in rests_s.items()}

    async def adopt_parts(self) -> None:
        """Adopt the parts of split bundles, and place all except the first anew.

        The first part stays, so that its clients need not reconnect. Late splits and merges are
        withdrawn. Raises `CoordinationError`.
        """
        cut = await self.adopt()
        late = await self.tasks.tend(TaskEvent.EXPIRED)
        self._rest(task.bundle for task in late if task.kind is TaskKind.SPLIT)
        others = [part for parts in cut for part in parts[1:]]
        if others:
            choices = self.decider.choose(others)
            assigned = self.tasks.assigned
            moves = tuple(move for move in choices.moves if move.target != assigned[move.bundle])
            await self.decider.order(replace(choices, moves=moves), AskedBy.RECONCILIATION)

    async def order_oversized(self) -> None:
        config = self.settings.now.config
        if not config.split.enabled:
            return
        reports = {
            broker: known.report.bundles
            for broker, known in self.context.cluster_state.loads.reports.items()
        }
        compute, averages = self.context.computing.compute, self.tracker.averages()
        names = await compute(lambda: {namespace_of(b) for some in reports.values() for b in some})
        known = {name: await self.boundaries(name) for name in names}
        counts = {name: len(one.bundles) for name, one in known.items() if one is not None}
        rules = split_rules_of(config.split, config.planner)
        found = await compute(find_splits, rules, reports, averages.long_rates, counts)
        due = [split.bundle for split in found.chosen if self._may_split(split.bundle)]
        order = SplitOrder(config.split.algorithm)
        proposals = [
            self._split(bundle, order, Cause.OVERSIZED, AskedBy.BALANCING)
            for bundle in due[: config.split.max_splits_per_round]
        ]
        if proposals:
            done = await self.tasks.dispatch(proposals)
            if done.too_large is not None:
                self._rest(done.refused)

    async def order(self, bundle: BundleId, order: SplitOrder) -> None:
        """Raises `Unfit`: no broker owns it, or it is merged; or as `dispatch`."""
        await self.adopt_parts()
        task = self.tasks.tasks.of(bundle)
        if task is not None and task.kind is TaskKind.MERGE:
            raise Unfit(f"{bundle} is being merged with its neighbour")
        proposal = self._split(bundle, order, Cause.REQUESTED, AskedBy.PEOPLE)
        await self._dispatch(proposal)

    async def merge(self, both: Merge, hotter: BundleId) -> None:
        """Order a merge on the owner of the hotter bundle, or else on the other owner.

        Raises as `order`, `Conflict`: another task is under way; `Unfit`: one has no owner,
        or neither owner may own both.
        """
        await self.adopt_parts()
        owner_of: dict[BundleId, BrokerId] = {}
        for half in both.halves:
            order = self.tasks.splits.get(half)
            if order is not None:
                raise Conflict(f"{half} is ordered to {order.algorithm} already; wait for that")
            holding = self.context.cluster_state.live_owner(half)
            planned = self.tasks.assigned.get(half)
            owner = holding.broker if holding else None
            if planned not in {None, owner}:
                raise Conflict(f"{half} is on its way to {planned}; wait until it is there")
            if owner is None:
                raise Unfit(f"no broker owns {half} now; look one of its topics up first")
            owner_of[half] = owner
        owners = sorted(set(owner_of.values()), key=lambda one: one != owner_of[hotter])
        barred = self.decider.barred(both.halves, owners)
        allowed = [broker for broker in owners if broker not in barred]
        if not allowed:
            why = "; ".join(f"{broker}: {reason}" for broker, reason in barred.items())
            raise Unfit(f"no owner of {both.lower} or {both.upper} may have both ({why})")
        await self._dispatch(
            BundleTask(
                kind=TaskKind.MERGE,
                bundles=both.halves,
                source=None,
                target=allowed[0],
                cause=Cause.REQUESTED,
                asked_by=AskedBy.PEOPLE,
                planned=self._planned(both.halves),
                splits=both.orders(),
            )
        )
        now_s = self.context.clock.monotonic_s()
        self.decider.memory = self.decider.rested(both.halves, now_s)

    def check_ordered(self, bundles: Sequence[BundleId], order: str, why: str = "") -> None:
        if not self.tasks.splits.keys() >= set(bundles):
            notes = (one.note for one in reversed(self.tasks.ended) if bundles[0] in one.bundles)
            note = next(notes, "") or "the bundle no longer exists"
            raise Unavailable(f"{order} was withdrawn{why} ({note})")

    async def _dispatch(self, proposal: BundleTask) -> None:
        found = await self.tasks.dispatch([proposal])
        if found.too_large is not None:
            raise found.too_large
        for bundle, why in found.refused.items():
            raise Unavailable(f"{proposal.kind.value} of {bundle} was not ordered: {why}")

    def _split(
        self, bundle: BundleId, order: SplitOrder, cause: Cause, asked_by: AskedBy
    ) -> BundleTask:
        planned = self._planned([bundle])
        holding = self.context.cluster_state.live_owner(bundle)
        owner = planned.get(bundle) or (holding.broker if holding else None)
        if owner is None:
            raise Unfit(f"no broker owns {bundle} now; look one of its topics up first")
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
        assigned = self.tasks.assigned
        return {bundle: assigned[bundle] for bundle in bundles if bundle in assigned}

    def _may_split(self, bundle: BundleId) -> bool:
        holding = self.context.cluster_state.owners.get(bundle)
        settled = holding is not None and holding.broker == self.tasks.assigned.get(bundle)
        rested = self.context.clock.monotonic_s() >= self._resting_until_s.get(bundle, 0.0)
        free = self.tasks.tasks.of(bundle) is None
        return settled and rested and free and bundle not in self.unsplittable

    def _rest(self, bundles: Iterable[BundleId]) -> None:
        until_s = self.context.clock.monotonic_s() + _REST_S
        self._resting_until_s |= dict.fromkeys(bundles, until_s)

    # --- adoption: bundles in the orders are replaced by their parts, or by the merged one ---

    async def adopt(self) -> tuple[tuple[BundleId, ...], ...]:
        """Replace split bundles in the orders by their parts; return the parts of each.

        The parts stay on its broker, which holds their locks. Raises `CoordinationError`.
        """
        known = {name: await self.boundaries(name) for name in sorted(self._changed_namespaces())}
        if not known:
            return ()
        found = _Found({name: one for name, one in known.items() if one is not None})
        await self.tasks.change(lambda: self._changes(found), lambda: self._adopted(found))
        return tuple(found.parts.values())

    async def boundaries(self, namespace: Namespace) -> Boundaries | None:
        try:
            return await self.context.cluster_state.boundaries(namespace)
        except MalformedContent as error:
            log.warning("znode.content.refused", path=error.where, error=str(error))
            return None

    def is_foreign(self, bundle: BundleId, boundaries: Boundaries) -> bool:
        """Return whether the bundle is outside the boundaries, without a known split or merge."""
        namespace = boundaries.namespace
        compared = self._checked.get(namespace) == boundaries and bundle in self._settled[namespace]
        return compared and bundle not in boundaries

    def _changed_namespaces(self) -> set[Namespace]:
        found: set[Namespace] = set()
        for bundle in self.tasks.assigned:
            namespace = namespace_of(bundle)
            boundaries = self.context.cluster_state.known_boundaries(namespace)
            current = boundaries is not None and self._checked.get(namespace) == boundaries
            if not current or bundle not in self._settled[namespace]:
                found.add(namespace)
        return found

    def _changes(self, found: _Found) -> OrderChanges:
        assigned = self.tasks.assigned
        bundles: dict[Namespace, set[BundleId]] = {name: set() for name in found.boundaries}
        for bundle in assigned:
            bundles.get(namespace_of(bundle), set()).add(bundle)
        for namespace, boundaries in found.boundaries.items():
            self._compare(found, boundaries, bundles[namespace])
        placed = {
            part: assigned[bundle]
            for bundle, parts in found.parts.items()
            for part in parts
            if part not in assigned
        }
        for half, whole in found.whole.items():
            # The holder of its lock, else the broker ordered to make the merge.
            holding = self.context.cluster_state.live_owner(whole)
            if whole not in assigned:
                placed[whole] = holding.broker if holding else assigned[half]
        return OrderChanges(placed, gone=(*found.parts, *found.whole))

    def _compare(self, found: _Found, boundaries: Boundaries, bundles: set[BundleId]) -> None:
        now = set(boundaries.bundles)
        for bundle in sorted(bundles - now):
            around = self._whole_of(bundle, boundaries)
            if around is not None:
                found.whole[bundle] = around
                continue
            try:
                found.parts[bundle] = parts_of(bundle, boundaries)
            except LoadManagerError as error:
                log.warning("bundle.range.unknown", bundle=bundle, error=str(error))
        # A bundle that reappears by an order decided before the split is compared again; an
        # unknown range only when the boundaries change.
        found.settled[boundaries.namespace] = frozenset(
            now | (bundles - found.parts.keys() - found.whole.keys())
        )

    def _adopted(self, found: _Found) -> None:
        self._checked |= found.boundaries
        self._settled |= found.settled
        if found.parts or found.whole:
            self._seed_averages(found)
        self.context.metrics.bundles_split(len(found.parts))
        for bundle, parts in found.parts.items():
            log.info("bundle.split.adopted", bundle=bundle, parts=parts)
            self.decider.recorder.cut("split", bundle, parts)
        for one in sorted(set(found.whole.values())):
            log.info("bundle.merge.adopted", bundle=one)
            halves = sorted(half for half, into in found.whole.items() if into == one)
            self.decider.recorder.cut("merge", one, halves)

    def _whole_of(self, half: BundleId, boundaries: Boundaries) -> BundleId | None:
        """Return the bundle into which ``half`` was merged, by an order or by its lock.

        The boundaries alone may belong to another namespace with the same name.
        """
        whole = merged_by_order(half, self.tasks.splits, boundaries)
        if whole is not None:
            return whole
        around = boundaries.at(range_of(half)[0])
        low, high = range_of(around)
        wider = low <= range_of(half)[0] and range_of(half)[1] <= high
        return around if wider and self.context.cluster_state.live_owner(around) else None

    def _seed_averages(self, found: _Found) -> None:
        """Give each part its share of the traffic by width, and a merged bundle the sum."""
        known = self.tracker.averages()
        for whole, parts in found.parts.items():
            if whole in known:
                width = _width(whole)
                self.tracker.seed(
                    {b: supposed_of([known[whole]], _width(b) / width) for b in parts}
                )
        halves: dict[BundleId, list[BundleAverages]] = {}
        for half, whole in sorted(found.whole.items()):
            if half in known:
                halves.setdefault(whole, []).append(known[half])
        self.tracker.seed({whole: supposed_of(averages) for whole, averages in halves.items()})


def _width(bundle: BundleId) -> int:
    lower, upper = range_of(bundle)
    return upper - lower
