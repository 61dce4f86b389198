"""Adopts splits and merges: replaces bundles in the orders by their parts or by the merged bundle.

The owner of a bundle splits or merges it in the boundaries of its namespace; here the standing
orders are updated accordingly.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from loadmanager.agent.splits import parts_of
from loadmanager.common.context import Context
from loadmanager.core.averages import BundleAverages, supposed_of
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import LoadManagerError, MalformedContent
from loadmanager.core.ids import BundleId, Namespace, namespace_of, range_of
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.orders import OrderChanges
from loadmanager.core.splitting.merging import merged_by_order
from loadmanager.leader.history_recorder import HistoryRecorder
from loadmanager.leader.task_controller import TaskController

log = structlog.get_logger()


@dataclass(slots=True)
class _Found:
    boundaries: Mapping[Namespace, Boundaries]
    parts: dict[BundleId, tuple[BundleId, ...]] = field(default_factory=dict)
    whole: dict[BundleId, BundleId] = field(default_factory=dict)
    settled: dict[Namespace, frozenset[BundleId]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Adoption:
    context: Context
    tasks: TaskController
    tracker: LoadTracker
    recorder: HistoryRecorder
    # Not versions: those of a recreated namespace start at 0 again.
    _checked: dict[Namespace, Boundaries] = field(default_factory=dict, init=False)
    _settled: dict[Namespace, frozenset[BundleId]] = field(default_factory=dict, init=False)

    async def adopt(self) -> tuple[tuple[BundleId, ...], ...]:
        """Replace split bundles in the orders by their parts; return the parts of each.

        The parts stay on the broker of the split bundle, which holds their locks. Merged bundles
        are replaced by the bundle that they became. Raises `CoordinationError`: boundaries cannot
        be read, or the orders cannot be written.
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
            self.recorder.cut("split", bundle, parts)
        for one in sorted(set(found.whole.values())):
            log.info("bundle.merge.adopted", bundle=one)
            halves = sorted(half for half, into in found.whole.items() if into == one)
            self.recorder.cut("merge", one, halves)

    def _whole_of(self, half: BundleId, boundaries: Boundaries) -> BundleId | None:
        """Return the bundle into which ``half``, which no longer exists, was merged.

        It is the bundle that contains ``half``, if the merge was ordered or its lock is held:
        the boundaries alone may belong to another namespace with the same name.
        """
        whole = merged_by_order(half, self.tasks.splits, boundaries)
        if whole is not None:
            return whole
        around = boundaries.at(range_of(half)[0])
        low, high = range_of(around)
        wider = low <= range_of(half)[0] and range_of(half)[1] <= high
        return around if wider and self.context.cluster_state.live_owner(around) else None

    def _seed_averages(self, found: _Found) -> None:
        """Assign each part its share of the split bundle's traffic, by width, until measured.

        A merged bundle has the sum of its halves.
        """
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
